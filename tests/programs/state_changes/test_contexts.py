"""Context managers of torch, as blocks, calls and decorators, with graph breaks inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import record_function
from torch.utils._device import DeviceContext

import jitmagic

from ..counts import counts_of
from ..scenarios import plainly

X = torch.linspace(0.25, 1.5, 3)
Contexts = dict[str, Callable[[], Any]]
CONTEXTS: Contexts = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "inference_mode": torch.inference_mode,
    "threads": lambda: torch.autograd.set_multithreading_enabled(False),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False, benchmark=True),
    "miopen": lambda: torch.backends.miopen.flags(immediate=True),
    "record_function": lambda: record_function("block", "arguments"),
    "device": lambda: torch.device("meta"),
    "device_context": lambda: DeviceContext("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
REFUSED: Contexts = {
    "detect_anomaly": torch.autograd.detect_anomaly,
    "set_detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}
DECORATORS = ("no_grad", "enable_grad", "inference_mode", "record_function")


def _state() -> list[Any]:
    """Return the state that the contexts change."""
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_multithreading_enabled(),
        torch.is_autocast_enabled("cpu"),
        str(torch.get_default_device()),
    ]


def _traced_state() -> list[Any]:
    """Return the state that can be read within a graph."""
    inference = torch.is_inference_mode_enabled()  # which changes the threads of a backward, too
    threads = inference or torch._C._is_multithreading_enabled()
    return [torch.is_grad_enabled(), inference, threads]


def block(make: Callable[[], Any], x: Any) -> Any:
    with make() as entered:
        inside, y = _traced_state(), x.detach() * 2
    return y + 1, inside, _traced_state(), type(entered)


def broken(make: Callable[[], Any], x: Any) -> Any:
    with make():
        before, y = _traced_state(), x.detach() * 2
        jitmagic.graph_break()
        after, y = _state(), y + 1
    return y.tolist(), before, after, _state()


def nested(make: Callable[[], Any], x: Any) -> Any:
    seen = []
    with torch.enable_grad():
        with make():
            with torch.no_grad():
                jitmagic.graph_break()
                seen.append(_state())
            seen.append(_state())
        seen.append(_state())
        jitmagic.graph_break()
    return x * 2, seen, _state()


def created(make: Callable[[], Any], x: Any) -> Any:
    context, seen = make(), [_traced_state()]
    jitmagic.graph_break()
    seen.append(_state())
    with context:
        seen.append(_state())
    return x * 2, seen, _state()


def raises(make: Callable[[], Any], x: Any) -> Any:
    try:
        with make():
            y = x.detach() * 2
            raise ValueError
    except ValueError:
        return y + 1, _traced_state()


def _run(program: Callable[..., Any], make: Callable[[], Any], tag: Callable[[Any], Any]) -> Any:
    results, run = [], tag(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            results.append([str(plainly(run(make, X.clone().requires_grad_()))), _state()])
            torch.set_grad_enabled(True)
            torch._C._set_multithreading_enabled(True)
    return results


@pytest.mark.parametrize("program", [block, broken, nested, created, raises])
@pytest.mark.parametrize("name", [*CONTEXTS, *REFUSED])
def test_context_as_in_eager(name: str, program: Callable[..., Any]) -> None:
    make = (CONTEXTS | REFUSED)[name]
    compiled = _run(program, make, jitmagic.jit(backend="eager"))
    assert compiled == _run(program, make, lambda fn: fn)


@pytest.mark.parametrize("name", CONTEXTS)
def test_block_is_within_one_graph(name: str) -> None:
    run = jitmagic.jit(block, backend="eager", fullgraph=True)
    _run(block, CONTEXTS[name], lambda _: run)
    assert counts_of(run).breaks == 0


@pytest.mark.parametrize("name", DECORATORS)
def test_decorated_function_is_within_one_graph(name: str) -> None:
    def program(make: Callable[[], Any], x: Any) -> Any:
        @make()
        def decorated(y: Any) -> Any:
            return y * 2, _traced_state()

        return decorated(x.detach()), _traced_state()

    run = jitmagic.jit(program, backend="eager", fullgraph=True)
    plain = _run(program, CONTEXTS[name], lambda fn: fn)
    assert _run(program, CONTEXTS[name], lambda _: run) == plain


def test_setters_called_as_functions() -> None:
    def program(make: Callable[[], Any], x: Any) -> Any:
        first = torch.autograd.set_multithreading_enabled(False)
        second = torch.set_grad_enabled(False)
        seen = [_traced_state(), first.prev, second.prev, first.mode]
        torch.set_grad_enabled(second.prev)
        return x * 2, seen

    run = jitmagic.jit(program, backend="eager", fullgraph=True)
    assert _run(program, object, lambda _: run) == _run(program, object, lambda fn: fn)


def test_threads_of_a_backward_are_read_in_inference_mode() -> None:
    def program(make: Callable[[], Any], x: Any) -> Any:
        with torch.inference_mode():
            inside = torch._C._is_multithreading_enabled()
        return x * 2, inside, torch._C._is_multithreading_enabled()

    run = jitmagic.jit(program, backend="eager")
    assert _run(program, object, lambda _: run) == _run(program, object, lambda fn: fn)
