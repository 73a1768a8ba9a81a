"""lower() itself: names, effects, devices, declines, errors, linear growth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from recording import check, record

from jitmagic.errors import VerifyError
from jitmagic.loops.ir import Extern, Nest
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.schedule.memory import plan_memory
from jitmagic.spec import TensorSpec, spec_of

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def _spec(*shape: int, device: torch.device = CUDA) -> TensorSpec:
    return TensorSpec(
        shape, tuple(torch.empty(shape, device="meta").stride()), torch.float32, device
    )


def _product_with_scalar(dtype):
    graph = torch.fx.Graph()
    x, s = graph.placeholder("x"), graph.placeholder("s")
    y = graph.call_function(aten.mul.Tensor, (x, s))
    graph.output((y,))
    x.meta["spec"], y.meta["spec"] = _spec(3), _spec(3)
    s.meta["spec"] = replace(_spec(device=torch.device("cpu")), dtype=dtype)
    program = lower(torch.fx.GraphModule({}, graph), "g")
    verify(program)
    return program


def test_a_cpu_scalar_is_an_argument_of_the_kernel():
    program = _product_with_scalar(torch.float64)
    (nest,) = program.steps
    assert isinstance(nest, Nest)
    assert {program.buffers[s.buffer].device for s in nest.stores} == {CUDA}


def test_a_cpu_scalar_of_another_dtype_moves_to_the_device():
    program = _product_with_scalar(torch.bool)
    moved, nest = program.steps
    assert isinstance(moved, Extern)
    assert moved.kwargs == {"device": CUDA}
    assert isinstance(nest, Nest)


def test_cpu_computations_are_not_gpu_nests():
    """A kernel of the GPU that reads the CPU's memory ends the process' CUDA context."""
    cpu = torch.device("cpu")
    graph = torch.fx.Graph()
    x, m = graph.placeholder("x"), graph.placeholder("m")
    mask = graph.call_function(aten.tril.default, (m,))
    turned = graph.call_function(aten.t.default, (mask,))
    there = graph.call_function(aten._to_copy.default, (turned,), {"device": CUDA})
    y = graph.call_function(aten.mul.Tensor, (x, there))
    graph.output((y, turned))
    for node in (x, there, y):
        node.meta["spec"] = _spec(3, 3)
    for node in (m, mask):
        node.meta["spec"] = _spec(3, 3, device=cpu)
    turned.meta["spec"] = replace(_spec(3, 3, device=cpu), stride=(1, 3))
    program = lower(torch.fx.GraphModule({}, graph), "g")
    verify(program)
    assert program.device == CUDA
    nests = [step for step in program.steps if isinstance(step, Nest)]
    assert {program.buffers[s.buffer].device for nest in nests for s in nest.stores} == {CUDA}
    fallbacks = {str(step.op) for step in program.steps if isinstance(step, Extern)}
    assert fallbacks == {"aten.tril.default", "aten._to_copy.default"}
    assert not plan_memory(program).pool


@pytest.mark.parametrize("added", [False, True])
def test_an_index_on_another_device_falls_back_to_aten(added):
    graph = torch.fx.Graph()
    x, i = graph.placeholder("x"), graph.placeholder("i")
    if added:
        y = graph.call_function(aten.index_put.default, (x, [i], x, True))
    else:
        y = graph.call_function(aten.index.Tensor, (x, [i]))
    graph.output((y,))
    x.meta["spec"], y.meta["spec"] = _spec(2, 3), _spec(2, 3)
    i.meta["spec"] = spec_of(torch.tensor([1, 2]))
    (step,) = lower(torch.fx.GraphModule({}, graph), "g").steps
    assert "operands on" in step.reason


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numbers_round_as_the_devices_kernels_do(device):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add.Tensor, (x, 0.1))
    graph.output((y,))
    half = replace(_spec(3, device=torch.device(device)), dtype=torch.bfloat16)
    x.meta["spec"] = y.meta["spec"] = half
    (nest,) = lower(torch.fx.GraphModule({}, graph), "g").steps
    number = nest.stores[0].value.value.args[1].value
    assert (abs(number - 0.1) < 1e-7) == (device == "cuda")


def test_copies_between_devices_fall_back_to_aten():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten._to_copy.default, (x,), {"device": CUDA})
    graph.output((y,))
    x.meta["spec"], y.meta["spec"] = _spec(3, device=torch.device("cpu")), _spec(3)
    (step,) = lower(torch.fx.GraphModule({}, graph), "g").steps
    assert (step.op, step.reason) == (aten._to_copy.default, "a copy between devices")


def test_origins_are_graph_nodes():
    graph, _ = record(lambda x, y: (x.flip(0) @ y + 1).sum(), torch.randn(3, 3), torch.randn(3, 3))
    program = lower(graph, "g")
    names = {node.name for node in graph.graph.nodes}
    assert all(set(s.origins) <= names for s in program.steps if isinstance(s, Nest))


def test_a_mutating_op_in_the_graph_is_refused():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add_.Tensor, (x, 1))
    graph.output((y,))
    x.meta["spec"] = y.meta["spec"] = spec_of(torch.randn(3))
    with pytest.raises(VerifyError, match="functional"):
        lower(torch.fx.GraphModule({}, graph), "g")


def test_missing_specs_are_refused():
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("x"),))
    with pytest.raises(VerifyError, match="no spec"):
        lower(torch.fx.GraphModule({}, graph), "g")


def test_unused_results_have_no_buffer():
    program = check(lambda x: x.max(1)[1], torch.randn(3, 4))
    assert [len(step.stores) for step in program.steps] == [1]
    program = check(lambda x: torch.sort(x)[1], torch.randn(3, 4), fallbacks=["aten.sort.default"])
    assert program.steps[0].results[0] is None


def test_none_outputs_stay_none():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["spec"] = spec_of(torch.randn(3))
    graph.output((x, None))
    assert lower(torch.fx.GraphModule({}, graph), "g").outputs == ("x", None)


def test_a_library_op_among_loops():
    check(
        lambda x, w: torch.relu(
            aten.convolution(x + 1, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        ),
        torch.randn(2, 3, 5, 5),
        torch.randn(4, 3, 3, 3),
        fallbacks=["aten.convolution.default"],
    )


def test_programs_grow_linearly_with_the_graph():
    def chain(x):
        for _ in range(300):
            x = torch.tanh(x * 1.01 + x)
        return x

    graph, _ = record(chain, torch.randn(4, 4))
    program = lower(graph, "chain")
    verify(program)
    assert len(program.steps) == 900
