"""What torch warns of in a compiled function: shown once, for the line that eager names."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.graph.attribution import Silence, call_from

mse_loss = nn.MSELoss()


def helper(x: Tensor) -> Tensor:
    return F.huber_loss(x, torch.ones(2, 1))


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.l1_loss(x @ x, torch.ones(2, 1))


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sizes that differ": lambda x: F.mse_loss(x, torch.ones(2, 1)),
    "in a helper": lambda x: helper(x * 2) + 1,
    "softmax along a guessed dimension": lambda x: F.softmax(x) * 2,
    "mean of kl_div": lambda x: F.kl_div(x.log_softmax(1), x.softmax(1)),
    "a tensor made of a tensor": lambda x: torch.tensor(x.detach()) + 1,
    "grid_sample": lambda x: F.grid_sample(x.expand(1, 1, 2, 2), torch.zeros(1, 2, 2, 2)),
    "under autocast": in_autocast,
    "deviation of one number": lambda x: x[:1].std(0) + 1,
    "transposed, but no matrix": lambda x: x[None].T + 1,
    "a number without history": lambda x: x + float(x.sum().requires_grad_()),
    "no window": lambda x: x + torch.istft(torch.ones(3, 4).to(torch.complex64), 4).sum(),
    "a number for Python": lambda x: x + math.atan(x.sum().requires_grad_()),
}
if sys.version_info >= (3, 12):
    PROGRAMS["inverted bool"] = lambda x: x + ~x.requires_grad


@contextmanager
def warned_again() -> Iterator[None]:
    """What torch's C++ warns of once in a process, it does at each call."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


def shown(
    run: Callable[[Tensor], Tensor], *calls: Tensor, action: str = "default"
) -> list[tuple[type, str, str, int]]:
    """Category, text and place of the warnings that three of each call show; one of each, where
    they are always shown.
    """
    vars(sys.modules[__name__]).get("__warningregistry__", {}).clear()
    with warnings.catch_warnings(record=True) as seen, warned_again():
        warnings.simplefilter(action)  # type: ignore[arg-type]
        for x in calls:
            for _ in range(3 if action == "default" else 1):
                run(x)
    return [(w.category, str(w.message), w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_warnings_name_the_line_that_eager_names(name: str, grad: bool) -> None:
    x = torch.randn(2, 2, requires_grad=grad)
    run = jitmagic.jit(PROGRAMS[name])
    run(x.clone())  # what the compiler imports may change the filters, which shows warnings again
    jitmagic.reset()
    eager = shown(PROGRAMS[name], x)
    assert len(eager) == 1
    assert shown(run, x) == eager


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_that_stages_repeat_is_heard_once(name: str, dynamic: bool) -> None:
    """With the sizes that the program has, of no others that its call is made at."""
    x = torch.randn(2, 2, requires_grad=True)
    run = jitmagic.jit(PROGRAMS[name], dynamic=dynamic, options={"keep": "compiled"})
    assert shown(run, x, action="always") == shown(PROGRAMS[name], x, action="always")


def broadcast(x: Tensor) -> Tensor:
    return F.mse_loss(x, x[:1])


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("action", ["default", "always"])
def test_sizes_are_those_of_the_call(action: str, grad: bool) -> None:
    calls = [torch.randn(n, 7, requires_grad=grad) for n in (6, 9, 11)]
    run = jitmagic.jit(broadcast, dynamic=True, options={"keep": "compiled"})
    assert shown(run, calls[0], action=action) == shown(broadcast, calls[0], action=action)
    eager = shown(broadcast, *calls[1:], action=action)
    assert set(shown(run, *calls[1:], action=action)) <= set(eager)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_filter_that_raises_does_so_in_the_program(dynamic: bool) -> None:
    run = jitmagic.jit(broadcast, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        before = list(warnings.filters)
        with pytest.raises(UserWarning, match=r"\[1, 7\].*\[6, 7\]"):
            run(torch.randn(6, 7))
        assert warnings.filters == before


def test_silence_shows_nothing_and_tells_of_it() -> None:
    silent, quiet = Silence(), Silence()
    a, b = torch.ones(2, 3), torch.ones(1, 3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call_from(silent, F.mse_loss, (a, b), {})
        call_from(quiet, F.mse_loss, (a, a), {})
    assert (silent.has_warned, quiet.has_warned, seen) == (True, False, [])


def test_in_a_module_of_torch_the_users_line_is_named() -> None:
    def program(x: Tensor) -> Tensor:
        return mse_loss(x, torch.ones(2, 1))

    run = jitmagic.jit(program, options={"keep": "compiled"})  # eager names torch's own line
    ((_, _, filename, lineno),) = shown(run, torch.randn(2, 2))
    assert (filename, lineno) == (__file__, program.__code__.co_firstlineno + 1)


WRITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "power": lambda x, y: x.pow_(y),
    "remainder": lambda x, y: x.remainder_(y),
    "comparison": lambda x, y: x.lt_(y),
    "whole quotient": lambda x, y: x.floor_divide_(y),
    "bound": lambda x, y: x.clamp_min_(y),
    "sum": lambda x, y: x.add_(y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_what_does_not_fit_raises_without_a_warning(name: str, dtype: torch.dtype) -> None:
    """torch's meta functions resize, and warn of it, before they raise."""
    x, y = torch.ones(3, 1, dtype=dtype), torch.ones(3, 4, dtype=dtype)
    run = jitmagic.jit(WRITES[name])
    with warnings.catch_warnings(record=True) as seen, pytest.raises(RuntimeError, match="shape"):
        warnings.simplefilter("always")
        run(x, y)
    assert not [w for w in seen if not w.category.__module__.startswith("jitmagic")]
