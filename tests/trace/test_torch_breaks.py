"""Breaks of tensor programs: data read by Python, process state, autograd on live objects.

Each break names the user's line and the reason; the code before it is in the graph.
"""

from __future__ import annotations

import copy
import pickle
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from jitmagic.trace import result as r

from .replaying import Replay, break_of, snapshot_of, trace_of

X = torch.randn(4, 3)
W = torch.randn(3, requires_grad=True)


class Sub(torch.Tensor):
    __torch_dispatch__ = classmethod(lambda *args, **kwargs: NotImplemented)


def item(x):
    y = x + 1
    return y if y.sum().item() > 0 else x  # here


def tolist(x):
    return x.repeat(4, 4).tolist()  # here


def to_numpy(x):
    return (x * 2).numpy(force=True)  # here


def np_function(x):
    y = x * 2
    return np.sin(y)  # here


def branch(x):
    y = x.sum()
    if y > 0:  # here
        return x
    return y


def truth(x):
    y = x.sum()
    return not y  # here


def as_int(x):
    y = x.sum()
    return (x, y)[int(y)]  # here


def as_float(x):
    y = x.sum()
    return {str(float(y)): x}  # here


def show(x):
    y = x + 1
    print(y)  # here
    return y


def text(x):
    y = x + 1
    return f"{y}"  # here


def nonzero_length(x):
    return len(torch.nonzero(x)) > 1  # here


def mask_branch(x):
    y = x[x > 0]
    if y.shape[0]:  # here
        return y


def one_hot(x):
    n = torch.arange(3)
    return F.one_hot(n)  # here


def slice_by_tensor(x):
    n = x.argmax()
    return x[:n]  # here


def contains(x):
    y = x + 1
    return 1.0 in y  # here


def equal(x):
    y = x + 1
    return torch.equal(x, y)  # here


def allclose(x):
    y = x + 1
    return torch.allclose(x, y)  # here


def hook(x):
    y = x * W
    y.register_hook(lambda g: g)  # here
    return y.mul_(2)


def parameter_inside(x):
    y = nn.Parameter(x.numpy())  # here
    return x + y


def seed(x):
    y = x + 1
    torch.seed()  # here
    return y


def threads(x):
    y = x + 1
    torch.set_num_threads(1)  # here
    return y


def rng_state(x):
    y = x + 1
    torch.get_rng_state()  # here
    return y


def generator(x):
    g = torch.Generator()  # here
    return torch.rand(3, generator=g) + x


def vmap(x):
    y = x + 1
    return torch.vmap(lambda row: row if row.sum() > 0 else -row)(y)  # here


def checkpoint(x):
    y = x + 1
    return torch.utils.checkpoint.checkpoint(torch.sin, y, use_reentrant=True)  # here


def deepcopy(x):
    y = x + 1
    return copy.deepcopy([y, y.view(-1)])  # here


def pickled(x):
    y = x + 1
    return pickle.dumps(y)  # here


def data_ptr(x):
    y = x + 1
    return y.data_ptr()  # here


def storage(x):
    y = x + 1
    return y.untyped_storage()  # here


def sparse(x):
    y = x + 1
    return y.to_sparse()  # here


def sparse_gradient(x):
    table = x.detach().requires_grad_()
    torch.nn.functional.embedding(x.long(), table, sparse=True).sum().backward()  # here


def resize(x):
    y = x + 1
    return y.resize_(2)  # here


def strided_beyond(x):
    return x.as_strided((2,), (1,), 11)  # here


def shape_mismatch(x):
    y = x + 1
    return y @ y  # here


def bad_argument(x):
    y = x + 1
    return torch.softmax(y, dim=7)  # here


def index_error(x):
    y = x + 1
    return y[9]  # here


def conv_stride(x):
    y = F.conv1d(x[None], torch.ones(1, 4, 1))
    return y.stride()  # here


def conv_dim_order(x):
    y = F.conv1d(x[None], torch.ones(1, 4, 1))
    return y.dim_order()  # here


def inference(x):
    y = x + 1
    with torch.inference_mode(False):  # here
        return y * 2


def autocast_elsewhere(x):
    y = x + 1
    with torch.autocast("xpu", dtype=torch.bfloat16):  # here
        return y @ y.T


def lstsq(x):
    y = x + 1
    return torch.linalg.lstsq(y, y)  # here


def compiled(x):
    y = x + 1
    return torch.compile(torch.sin)(y)  # here


def script(x):
    y = x + 1
    return torch.jit.trace(torch.sin, y)  # here


def python_random(x):
    y = x + 1
    return y * random.getrandbits(8)  # here


def tensor_subclass(x):
    y = x + 1
    return y.as_subclass(Sub)  # here


def apply_python(x):
    y = x + 1
    return y.apply_(abs)  # here


def from_buffer(x):
    y = x + 1
    return y + torch.frombuffer(bytearray(12), dtype=torch.float32)  # here


def module_inside(x):
    y = x + 1
    return nn.LSTM(3, 3)(y)  # here


BREAKS = {
    item: "item", tolist: "tolist", to_numpy: "numpy", branch: "branch depends on tensor data",
    truth: "tensor data", as_int: "", as_float: "", show: "print", text: "", one_hot: "one_hot",
    nonzero_length: "data-dependent", mask_branch: "y = x[x > 0]",
    slice_by_tensor: "", contains: "in", equal: "equal", allclose: "allclose",
    hook: "register_hook",
    parameter_inside: "such a value", seed: "state of the process",
    threads: "state of the process", rng_state: "state", generator: "",
    vmap: "branch", checkpoint: "reentrant form", deepcopy: "",
    pickled: "", data_ptr: "storage", storage: "storage", sparse: "no meta", resize: "storage",
    sparse_gradient: "a gradient is sparse", strided_beyond: "beyond the known storage",
    shape_mismatch: "RuntimeError", bad_argument: "IndexError",
    index_error: "IndexError", conv_stride: "layout", conv_dim_order: "layout",
    inference: "inference_mode()",
    autocast_elsewhere: "not supported",
    lstsq: "tensor data", compiled: "", script: "", python_random: "",
    tensor_subclass: "another kind", apply_python: "every element", from_buffer: "",
    module_inside: "made outside of graphs", np_function: "",
}  # fmt: skip


def line_marked_here(function) -> str:
    import inspect

    return next(s.strip() for s in inspect.getsource(function).split("\n") if "# here" in s)


@pytest.mark.parametrize(("program", "words"), BREAKS.items(), ids=[p.__name__ for p in BREAKS])
def test_break(program, words):
    x = torch.randn(4, 3)
    broken = break_of(program, x)
    assert broken.where.text == line_marked_here(program)
    assert words in broken.reason.message, broken.reason.message


def test_the_prefix_is_in_the_graph():
    trace = trace_of(branch, X)
    assert [n.target for n in trace.graph.graph.nodes if n.op.startswith("call")][0] == "sum"
    assert "TensorBranch" == trace.exit.reason.kind


UNFIT = {
    "subclass": lambda: X.as_subclass(Sub),
    "sparse": lambda: X.to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "meta": lambda: torch.empty(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("block", [nullcontext, torch.autograd.forward_ad.dual_level])
def test_tensors_that_are_no_inputs(make, block):
    def program(x, y):
        z = y + 1
        return x * 2, z

    with block():
        broken = break_of(program, make(), X)
    assert "graph input" in broken.reason.message
    assert broken.where.text == "return x * 2, z"


def test_an_unsupported_tensor_may_be_returned():
    odd = X.to_sparse()

    def program(x, y):
        return x, y + 1

    trace = trace_of(program, odd, X)
    assert isinstance(trace.exit, r.Return)
    assert len(trace.inputs) == 1


def test_write_to_a_leaf_that_a_history_has_saved_ends_the_graph():
    def program(w, x):
        with torch.no_grad():
            w.mul_(2)
        loss = (w * w).sum()
        with torch.no_grad():
            w.add_(1)
        return loss + (w * x).sum()

    broken = break_of(program, torch.ones(3, requires_grad=True), torch.ones(3))
    assert "takes part in autograd" in broken.reason.message
    assert broken.where.text == "w.add_(1)"


def test_differentiable_write_to_an_input_is_left_to_eager():
    def program(x):
        x.mul_(W)
        return x

    assert "autograd" in break_of(program, torch.ones(3)).reason.message


def test_overlapping_inputs_and_a_write():
    base = torch.zeros(6)

    def program(x, y):
        x.add_(1)
        return y * 2

    assert "shares its memory" in break_of(program, base[:4], base[2:]).reason.message
    assert isinstance(trace_of(program, base[:3], base[3:]).exit, r.Return)


def test_shape_change_of_an_input_in_place():
    def program(x):
        x.t_()
        return x + 1

    assert "shape" in break_of(program, torch.zeros(2, 3)).reason.message


def run_to_break(fn, *args):
    snapshot = snapshot_of(fn, args)
    replay = Replay(trace_of(fn, *args), snapshot)
    exit_ = replay.run()
    assert isinstance(exit_, r.Break)
    return replay, exit_


def test_break_inside_no_grad_leaves_the_mode_and_a_real_context():
    def program(x):
        with torch.no_grad():
            y = x * 2
            print(end="")
            return y * 3

    try:
        replay, exit_ = run_to_break(program, W)
        assert not torch.is_grad_enabled()
        leave = next(
            replay.make(each) for each in exit_.stack if each is not None and _is_exit(replay, each)
        )
        assert leave(None, None, None) is None
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def _is_exit(replay, recipe):
    return getattr(replay.make(recipe), "__name__", "") == "__exit__"


def test_break_inside_set_grad_enabled():
    def program(x):
        with torch.set_grad_enabled(False):
            y = x * 2
            print(end="")
        return y

    try:
        replay, exit_ = run_to_break(program, W)
        assert not torch.is_grad_enabled()
        leave = next(replay.make(s) for s in exit_.stack if s is not None and _is_exit(replay, s))
        leave(None, None, None)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_break_inside_nested_modes_restores_the_outer_one():
    def program(x):
        with torch.no_grad():
            with torch.enable_grad():
                y = x * 2
                print(end="")
        return y

    replay, exit_ = run_to_break(program, W)
    assert torch.is_grad_enabled()
    leaves = [replay.make(s) for s in exit_.stack if s is not None and _is_exit(replay, s)]
    try:
        leaves[1](None, None, None)
        assert not torch.is_grad_enabled()
        leaves[0](None, None, None)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_tracing_leaves_the_thread_as_it_was():
    def program(x):
        torch.set_grad_enabled(False)
        return x * 2

    trace = trace_of(program, W)
    assert torch.is_grad_enabled()
    assert not trace.exit == "Break"
    assert any(isinstance(effect, r.Perform) for effect in trace.effects)


def test_an_exception_inside_no_grad_restores_the_mode():
    def program(x):
        try:
            with torch.no_grad():
                y = x * 2
                raise ValueError("no")
        except ValueError:
            y = x * 3
        return y

    trace = trace_of(program, W)
    assert isinstance(trace.exit, r.Return)
    (node,) = [n for n in trace.graph.graph.nodes if n.op == "output"][0].all_input_nodes
    assert node.meta["spec"].requires_grad


def test_function_modes_are_left_to_eager():
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def program(x):
        return x + 1

    with Mode():
        assert "mode is active" in break_of(program, torch.ones(3)).reason.message
