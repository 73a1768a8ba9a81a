"""The user's modes, hooks and states see the same in a first call as in a later one.

Where jitmagic cannot differ (operations, printed text, warnings), they also see the same as in
eager.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import jitmagic
from jitmagic.frame.sandbox import sandbox


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def dispatch_mode(seen: list[Any]) -> Iterator[None]:
    mode = Dispatched()
    mode.seen = seen
    with mode:
        yield


@contextlib.contextmanager
def function_mode(seen: list[Any]) -> Iterator[None]:
    mode = Called()
    mode.seen = seen
    with mode:
        yield


@contextlib.contextmanager
def saved_tensor_hooks(seen: list[Any]) -> Iterator[None]:
    def pack(tensor):
        seen.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def profiler(seen: list[Any]) -> Iterator[None]:
    """A later call shows as many operations: compiled code has other ones than eager."""
    # acc_events: without it torch 2.11 warns, in the first profile of a process only
    with torch.profiler.profile(acc_events=True) as profile:
        yield
    seen += sorted(event.name for event in profile.events())


@contextlib.contextmanager
def autocast(seen: list[Any]) -> Iterator[None]:
    with torch.autocast("cpu"):
        yield


@contextlib.contextmanager
def anomaly_mode(seen: list[Any]) -> Iterator[None]:
    with torch.autograd.detect_anomaly():
        yield
        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()


@contextlib.contextmanager
def deterministic(seen: list[Any]) -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def double_precision(seen: list[Any]) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def default_device(seen: list[Any]) -> Iterator[None]:
    with torch.device("cpu"):
        yield


@contextlib.contextmanager
def warnings_as_errors(seen: list[Any]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def python_profile(seen: list[Any]) -> Iterator[None]:
    before = sys.getprofile()
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        yield
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def collector_off(seen: list[Any]) -> Iterator[None]:
    gc.disable()
    try:
        yield
        assert not gc.isenabled()
    finally:
        gc.enable()


@contextlib.contextmanager
def nothing(seen: list[Any]) -> Iterator[None]:
    yield


MODES = [
    nothing, dispatch_mode, function_mode, saved_tensor_hooks, profiler, autocast, anomaly_mode,
    deterministic, double_precision, default_device, warnings_as_errors, python_profile,
    collector_off,
]  # fmt: skip
OF_EAGER = {dispatch_mode, function_mode, saved_tensor_hooks}  # compiled code shows them the same


def logarithms(x):
    return (x.log() * 2).relu().sum(-1)


def a_break(x):
    y = x.log() + 1
    jitmagic.graph_break()
    return (y * x).sum()


def random_numbers(x):
    return (x * torch.rand_like(x)).sum()


PROGRAMS = [logarithms, a_break, random_numbers]


def _state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        random.getstate(),
        list(warnings.filters),
        gc.isenabled(),
    )


def _observe(function, mode, capfd):
    """Return the results of a forward and a backward under the mode, and what the mode has seen."""
    torch.manual_seed(7)
    x = (torch.arange(16.0).reshape(4, 4) + 1).requires_grad_()
    seen: list[Any] = []
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as told, mode(seen):
        if mode is not warnings_as_errors:
            warnings.simplefilter("always")
        before = _state()
        out = function(x)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert _state() == before
    texts = [str(one.message) for one in told]
    printed = [line for line in "".join(capfd.readouterr()).splitlines() if "USDT" not in line]
    draws = torch.get_rng_state()
    return (out, gradient, draws), seen, texts, printed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_a_first_call_shows_nothing_of_the_compile(mode, program, capfd):
    gc.collect()  # an earlier test's open files warn when they are freed
    tagged = jitmagic.jit(program, options={"keep": "compiled"})
    # What libraries print once a process does so here: the profiler where there is no driver.
    _observe(program, mode, capfd)
    wanted, plain_seen, texts, printed = _observe(program, mode, capfd)
    calls = [_observe(tagged, mode, capfd) for _ in range(3)]
    for values, seen, told, shown in calls:
        torch.testing.assert_close(values, wanted)
        assert told == texts
        assert shown == printed
        if mode in OF_EAGER and program is not a_break and mode is not saved_tensor_hooks:
            assert seen == plain_seen
    if mode is not profiler:
        assert calls[0][1] == calls[-1][1]
    else:  # the first call's own allocations are the compiled code's
        assert set(calls[0][1]) <= set(calls[-1][1]) | set(plain_seen)


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_no_garbage_collection_during_a_compile(backend):
    """Finalizers would run among the operations of a compile (of a frame, of new sizes, of a
    backward).
    """
    stages = {("jitmagic", name) for name in ("trace", "autograd", "loops", "schedule", "codegen")}
    met: list[str] = []

    def told(phase, info):
        frame = sys._getframe()
        while (frame := frame.f_back) is not None:
            *_, package, folder, name = ("", "", *frame.f_code.co_filename.split("/"))
            # It calls the graph, and has its backward built.
            if (package, folder) in stages and name != "autograd_function.py":
                met.append(f"{folder}/{name}: {frame.f_code.co_name}")

    how = {"verify": False}  # a joint graph of sizes is verified at vectors that were compiled
    tagged = jitmagic.jit(logarithms, dynamic=True, backend=backend, options=how)
    before = gc.get_threshold()
    gc.callbacks.append(told)
    gc.set_threshold(20)
    try:
        for size in (3, 5, 8):
            tagged(torch.ones(size, size + 1, requires_grad=True)).sum().backward()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(told)
    assert not met


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_the_sandbox_restores_all_state_in_order():
    seen: list[Any] = []
    with contextlib.ExitStack() as stack:
        for mode in (dispatch_mode, function_mode, saved_tensor_hooks, anomaly_mode) * 2:
            stack.enter_context(mode(seen))
        before = _state()
        with pytest.raises(KeyError), sandbox():
            assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
            assert not torch.is_anomaly_enabled()
            x = torch.ones(2, requires_grad=True)
            (x * x).sum().backward()
            raise KeyError
        assert seen == []
        assert _state() == before
        (x * x).sum()
    assert {"mul", "aten.mul.Tensor", (2,)} <= set(seen)


def _programs_of_every_mode():
    """Programs whose compile enters modes of jitmagic's and of torch's."""

    def plain(x):
        return (x * 2).relu().sum(-1)

    def autocast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.mT
        return y.float() * 2

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False) * 2

    def shaped_by_torch(x):
        return torch.logcumsumexp(x, 0) + torch.linalg.matrix_exp(x)

    return plain, autocast, checkpointed, shaped_by_torch


_ENTERED = (
    TorchDispatchMode, TorchFunctionMode, torch.no_grad, torch.enable_grad, torch.set_grad_enabled,
)  # fmt: skip


@pytest.mark.parametrize("end", ["entered", "left"])
@pytest.mark.parametrize("program", _programs_of_every_mode(), ids=lambda program: program.__name__)
def test_ctrl_c_while_a_mode_is_entered_or_left_leaves_no_mode_active(program, end, monkeypatch):
    """Interrupt once at each point at which no `with` restores the mode."""
    x = torch.randn(3, 3, requires_grad=True)
    wanted = program(x)
    jitmagic.jit(program)(x)  # what is imported then adds filters for its warnings
    before = _state()
    method = "__enter__" if end == "entered" else "__exit__"
    struck, strike_at = 0, 1
    while True:
        moments = 0

        def cut(original):
            def run(*args):
                nonlocal moments
                if end == "entered":
                    original(*args)
                moments += 1
                if moments == strike_at:
                    raise KeyboardInterrupt
                return args[0] if end == "entered" else original(*args)

            return run

        jitmagic.reset()
        tagged = jitmagic.jit(program)
        with monkeypatch.context() as patch:
            for mode in _ENTERED:
                patch.setattr(mode, method, cut(vars(mode)[method]))
            try:
                tagged(x)
            except KeyboardInterrupt:
                struck += 1
        assert _state() == before, f"at moment {strike_at}"
        torch.testing.assert_close(tagged(x), wanted)
        if moments < strike_at:
            break
        strike_at += max(1, strike_at // 3)
    assert struck > 4
