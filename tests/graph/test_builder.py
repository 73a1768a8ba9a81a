"""GraphBuilder records and refuses the right calls, and its graph computes the program's
results.
"""

import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchgen

from jitmagic.errors import UserLine, VerifyError
from jitmagic.graph.builder import GraphBuilder
from jitmagic.graph.devices import MixedDevices
from jitmagic.graph.passes import merge_equal
from jitmagic.graph.propagate import DataDependent, EagerRaises
from jitmagic.graph.show import show
from jitmagic.graph.verify import verify
from jitmagic.operators import operation
from jitmagic.spec import TensorSpec, spec_of

CUDA = torch.device("cuda", 0)


def builder_for(*tensors: torch.Tensor) -> tuple[GraphBuilder, list[torch.fx.Node]]:
    graph = GraphBuilder(True)
    nodes = [graph.placeholder(f"x{i}", spec_of(t)) for i, t in enumerate(tensors)]
    return graph, nodes


def on_cuda(*shape: int) -> TensorSpec:
    return spec_of(torch.empty(shape)).__class__(
        shape, torch.empty(shape).stride(), torch.float32, CUDA
    )


def finish(graph: GraphBuilder, *nodes: torch.fx.Node) -> torch.fx.GraphModule:
    for node in nodes:
        graph.output(node)
    module, _ = graph.finish("test")
    verify(module)
    return module


def test_small_graph_runs_and_prints() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)
    graph, (a, b) = builder_for(x, w)
    line = (UserLine("nb.py", 7, "f"),)
    y = graph.call(F.linear, (a, b), lines=line)
    z = graph.call("relu", (y,))
    module = finish(graph, z)
    torch.testing.assert_close(module(x, w)[0], F.linear(x, w).relu())
    assert y.meta["spec"] == TensorSpec(
        (2, 4), (4, 1), torch.float32, torch.device("cpu"), True, False
    )
    assert "line 7" in show(module)
    assert "float32[2, 4] cpu grad" in show(module)


def test_late_placeholders_are_inserted_first() -> None:
    graph, (a,) = builder_for(torch.ones(2))
    b = graph.call(torch.add, (a, 1))
    late = graph.placeholder("self.fc.weight", spec_of(torch.ones(2)))
    module = finish(graph, graph.call(operator.add, (b, late)))
    assert [n.name for n in module.graph.nodes if n.op == "placeholder"] == ["x0", "self_fc_weight"]


NAMES = "s S self lambda_ class_ _ torch device inf nan add Add x_1 X_1 print None_".split()


def test_input_names_are_made_unique() -> None:
    graph = GraphBuilder(True)
    for name in NAMES:
        node = graph.placeholder(name, spec_of(torch.ones(2)))
        made = graph.call(torch.clamp, (node,), {"max": float("inf")})
        graph.output(graph.call(torch.add, (made, 1)))
    module, _ = graph.finish("self")
    values = [torch.full((2,), float(n)) for n in range(len(NAMES))]
    assert [int(out[0]) - 1 for out in module(*values)] == list(range(len(NAMES)))


def test_unused_inputs_and_dead_nodes_are_erased() -> None:
    graph, (a, b) = builder_for(torch.ones(2), torch.ones(2))
    graph.call(torch.exp, (a,))
    graph.output(graph.call(torch.sin, (b,)))
    module, inputs = graph.finish("f")
    assert inputs == (b,)
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [torch.sin]


@pytest.mark.parametrize("base", [-2, -2.5, -2.5j, float("-inf")])
def test_powers_of_negative_numbers(base: complex) -> None:
    x = torch.arange(4.0)
    graph, (node,) = builder_for(x)
    made = finish(graph, graph.call(operator.pow, [base, node]))
    assert torch.equal(made(x)[0], base**x)


def test_random_and_mutating_nodes_stay_and_draw_as_eager() -> None:
    x = torch.zeros(3)
    graph, (a,) = builder_for(x)
    before = torch.get_rng_state()
    graph.call(torch.rand, (2,))
    graph.call("add_", (a, 1))
    kept = graph.call(torch.rand_like, (a,))
    assert torch.equal(before, torch.get_rng_state())
    module = finish(graph, kept)
    torch.manual_seed(3)
    (got,) = module(x)
    torch.manual_seed(3)
    torch.rand(2)
    assert torch.equal(got, torch.rand(3))
    assert torch.equal(x, torch.ones(3))
    assert list(graph.mutated_inputs) == [a]


def test_writes_through_views_are_writes_to_the_input() -> None:
    graph, (a, b) = builder_for(torch.zeros(3, 3), torch.zeros(3))
    view = graph.call("t", (a,))
    graph.call(operator.setitem, (view, 0, b))
    assert list(graph.mutated_inputs) == [a]


def test_batch_norm_in_training_writes_its_statistics() -> None:
    graph, (x, m, v) = builder_for(torch.ones(2, 3), torch.zeros(3), torch.ones(3))
    graph.call(F.batch_norm, (x, m, v), {"training": True})
    assert list(graph.mutated_inputs) == [m, v]
    graph, (x, m, v) = builder_for(torch.ones(2, 3), torch.zeros(3), torch.ones(3))
    graph.call(F.batch_norm, (x, m, v), {"training": False})
    assert not graph.mutated_inputs


def test_results_that_are_arguments_are_the_same_node() -> None:
    graph, (a,) = builder_for(torch.ones(2, 2))
    assert graph.call("float", (a,)) is a
    assert graph.call("contiguous", (a,)) is a
    assert graph.call("add_", (a, 1)) is a
    assert graph.call("double", (a,)) is not a


def test_several_results_are_getitem_nodes() -> None:
    x = torch.randn(4, 3)
    graph, (a,) = builder_for(x)
    values, indices = graph.call(torch.max, (a, 0))
    parts = graph.call("split", (a, 2))
    module = finish(graph, values, indices, *parts)
    for got, wanted in zip(module(x), (*torch.max(x, 0), *x.split(2)), strict=True):
        assert torch.equal(got, wanted)


def test_plain_results_leave_no_node() -> None:
    graph, (a,) = builder_for(torch.ones(2, 5))
    assert graph.call("size", (a, 1)) == 5
    assert graph.call(torch.is_floating_point, (a,)) is True
    assert len(graph.graph.nodes) == 1


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.nonzero, ()),
        ("item", ()),
        ("tolist", ()),
        (torch.unique, ()),
        (bool, ()),
        (torch.where, ()),
    ],
)
def test_data_dependent_calls_are_refused(target: object, args: tuple) -> None:
    graph, (a,) = builder_for(torch.ones(1))
    with pytest.raises(DataDependent):
        graph.call(target, (a, *args))


def test_errors_of_the_program_are_refused() -> None:
    graph, (a, b) = builder_for(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(EagerRaises, match="reduction dim|cannot multiply"):
        graph.call(torch.matmul, (a, b))
    leaf = torch.ones(2, requires_grad=True)
    graph, (a,) = builder_for(leaf)
    with pytest.raises(EagerRaises, match="leaf Variable"):
        graph.call("add_", (a, 1))


def test_grad_mode_is_in_the_graph_and_restored() -> None:
    w = torch.ones(2, requires_grad=True)
    graph, (a,) = builder_for(w)
    graph.set_grad_enabled(False)
    y = graph.call(torch.sin, (a,))
    assert not y.meta["spec"].requires_grad
    graph.set_grad_enabled(True)
    graph.set_grad_enabled(False)
    module = finish(graph, y)
    assert torch.is_grad_enabled()
    (got,) = module(w)
    assert torch.is_grad_enabled()
    assert not got.requires_grad
    assert sum(n.target is torch._C._set_grad_enabled for n in module.graph.nodes) == 2


def test_non_leaf_inputs_may_be_written() -> None:
    x = torch.ones(2, 3, requires_grad=True) * 2
    graph, (a,) = builder_for(x.t())
    assert not a.meta["val"].is_leaf
    assert a.meta["val"].stride() == (1, 3)
    graph.call("mul_", (a, 2))
    expanded = (torch.ones(1, 3, requires_grad=True) * 1).expand(4, 3)
    graph, (a,) = builder_for(expanded)
    assert a.meta["val"].stride() == (0, 1)
    assert a.meta["val"].requires_grad


def test_result_devices_equal_eager() -> None:
    graph = GraphBuilder(True)
    x = graph.placeholder("x", on_cuda(2, 3))
    s = graph.placeholder("s", spec_of(torch.tensor(2.0)))
    c = graph.placeholder("c", spec_of(torch.ones(2, 3)))
    i = graph.placeholder("i", spec_of(torch.tensor([1, 0])))
    device = lambda node: node.meta["spec"].device
    assert device(graph.call(torch.mul, (s, x))) == CUDA
    assert device(graph.call(operator.add, (x, s))) == CUDA
    assert device(graph.call(operator.getitem, (x, i))) == CUDA
    assert device(graph.call("cpu", (x,))) == torch.device("cpu")
    assert graph.call("cpu", (c,)) is c
    assert device(graph.call("to", (c, x))) == CUDA
    assert graph.call("to", (x, "cpu"), {"dtype": torch.half}).meta["spec"].dtype == torch.half
    assert device(graph.call("fill_", (graph.call("clone", (x,)), s))) == CUDA
    assert (
        device(graph.call("fill_", (graph.call("clone", (s,)), graph.call("sum", (x,))))).type
        == "cpu"
    )
    assert device(graph.call(torch.zeros, (3,))) == torch.device("cpu")
    made = graph.call(torch.zeros, (3,), {"device": "cuda:0"})
    assert device(made) == CUDA
    assert made.kwargs == {"device": "cuda:0"}
    assert device(graph.call(torch.zeros_like, (x,))) == CUDA
    assert device(graph.call("new_zeros", (x, 3))) == CUDA
    assert device(graph.call(torch.zeros_like, (x,), {"device": "cpu"})) == torch.device("cpu")
    with pytest.raises(MixedDevices):
        graph.call(torch.add, (x, c))
    with pytest.raises(MixedDevices):
        graph.call(torch.matmul, (x, graph.call("t", (c,))))
    for target, args in _REFUSED_ON_TWO_DEVICES:
        with pytest.raises(MixedDevices):
            graph.call(target, [{"x": x, "s": s}[name] for name in args])
    with pytest.raises(MixedDevices):
        graph.call(torch.mul, (x, 2), {"out": c})
    with pytest.raises(MixedDevices):
        graph.call(torch.mul, (s, 2), {"out": graph.call("sum", (x,))})
    assert device(graph.call(torch.mul, (x, s), {"out": graph.call("clone", (x,))})) == CUDA


_REFUSED_ON_TWO_DEVICES = [
    *(("add_", "sx"), ("bitwise_and_", "sx"), (operator.iadd, "sx"), ("__imul__", "sx")),
    *((torch.clamp, "xs"), (torch.clamp_min, "xs"), (torch.logaddexp, "xs")),
    *((torch.nextafter, "xs"), ("clip", "xs")),
]


def test_cpu_scalars_mix_only_where_kernels_allow_it() -> None:
    """torch's own table of operators says which kernels leave devices to TensorIterator."""
    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    for entry in table.read_text().split("\n- func: ")[1:]:
        signature = entry.split("\n")[0]
        name, _, overload = signature.partition("(")[0].partition(".")
        operands = signature.partition(" -> ")[0].count("Tensor ")
        if operation(name).mixes != "scalars" or operands < 2 or overload.endswith("out"):
            continue
        composite = "dispatch:" not in entry and "structured_delegate:" not in entry
        assert composite or "device_check: NoCheck" in entry or "CompositeExplicit" in entry, name


def test_convolution_keeps_channels_last() -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3)
    graph, (a, b) = builder_for(x, w)
    y = graph.call(torch.conv2d, (a, b))
    assert y.meta["spec"].stride == torch.conv2d(x, w).stride()
    assert y in graph.unknown_strides
    assert graph.call("contiguous", (y,)) not in graph.unknown_strides


@pytest.mark.parametrize(
    ("target", "args"), [("roll", (1, 2)), (torch.nn.functional.pixel_unshuffle, (2,))]
)
def test_layouts_differ_between_cpu_and_gpu(target: Any, args: tuple[int, ...]) -> None:
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    for spec in (spec_of(x), replace(spec_of(x), device=CUDA)):
        graph = GraphBuilder(True)
        y = graph.call(target, (graph.placeholder("x", spec), *args))
        assert (y in graph.unknown_strides) == (spec.device == CUDA)


def test_merge_equal_keeps_outputs_separate() -> None:
    x = torch.randn(3)
    graph, (a,) = builder_for(x)
    one, two = graph.call(torch.sin, (a,)), graph.call(torch.sin, (a,))
    sums = graph.call(operator.add, (one, two))
    left, right = graph.call(torch.cos, (a,)), graph.call(torch.cos, (a,))
    module = finish(graph, sums, left, right)
    assert merge_equal(module.graph) == 1
    module.recompile()
    got = module(x)
    assert torch.equal(got[0], x.sin() + x.sin())
    assert got[1] is not got[2]


def test_merge_equal_distinguishes_constants_and_skips_mutation() -> None:
    graph, (a,) = builder_for(torch.ones(3, dtype=torch.int64))
    parts = [graph.call(operator.mul, (a, c)) for c in (1, 1.0, True)]
    module = finish(graph, graph.call(torch.stack, ([graph.call("float", (p,)) for p in parts],)))
    assert merge_equal(module.graph) == 0
    graph, (a,) = builder_for(torch.ones(3))
    one = graph.call(torch.sin, (a,))
    graph.call("add_", (a, 1))
    two = graph.call(torch.sin, (a,))
    module = finish(graph, graph.call(operator.add, (one, two)))
    assert merge_equal(module.graph) == 0


def test_verify_finds_bad_graphs() -> None:
    graph, (a,) = builder_for(torch.ones(3))
    module = finish(graph, graph.call(torch.sin, (a,)))
    next(n for n in module.graph.nodes if n.op == "call_function").meta.clear()
    with pytest.raises(VerifyError, match="missing"):
        verify(module)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_dtypes_without_kernels_raise_on_every_device(device):
    graph = GraphBuilder()
    spec = TensorSpec((3,), (1,), torch.int16, torch.device(device))
    counts = graph.placeholder("counts", spec)
    with pytest.raises(EagerRaises, match="can't be cast to the desired output type Short"):
        graph.call("mul_", (counts, -2.5))
    with pytest.raises(EagerRaises, match="Integers to negative integer powers"):
        graph.call(torch.pow, (counts, -1))
    assert graph.call(torch.mul, (counts, -2.5)).meta["spec"].dtype is torch.float32


def test_gpu_draws_into_written_strided_memory_are_refused():
    graph = GraphBuilder()
    kept, written = (
        graph.placeholder(name, TensorSpec((4, 3), (6, 1), torch.float32, CUDA)) for name in "xy"
    )
    graph.call("mul_", (written, 2))
    graph.call(F.dropout, (kept, 0.5))
    with pytest.raises(EagerRaises, match="gaps"):
        graph.call(F.dropout, (written, 0.5))
