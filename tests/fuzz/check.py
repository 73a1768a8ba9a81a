"""find: examine a program under a tier; if it fails, shrink it and name the stage at fault."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable

import torch

from . import inputs
from .inputs import living_on
from .observe import observe
from .oracle import Difference, examine
from .program import Program
from .shrink import shrink
from .tiers import compiled_by

__all__ = ["ends", "examine_under", "find"]

_LONGEST = 5  # seconds of the processor that eager may take for what shrinking has left
_BISECTION = ("frames", "joint", "aten", "loops", "scheduled")


def examine_under(program: Program, tier: str) -> Difference | None:
    """The difference that compiling with the tier makes."""
    try:
        with living_on(_device_of(tier)), compiled_by(tier) as wrap:
            return examine(program, wrap)
    finally:
        torch.set_grad_enabled(True)
        gc.collect(0)


def find(
    program: Program, tier: str, begins: Callable[[], object] = lambda: None
) -> tuple[Program, Difference, str] | None:
    """(smallest program, its difference, first tier that shows one); None: behaves as eager.

    `begins` is called before each program that is tried.
    """
    with living_on(_device_of(tier)):  # the bisection's other tiers too
        return _find(program, tier, begins)


def _device_of(tier: str) -> str:
    return "cuda" if tier == "cuda" else inputs.DEVICE


def _find(
    program: Program, tier: str, begins: Callable[[], object]
) -> tuple[Program, Difference, str] | None:
    begins()
    found = examine_under(program, tier)
    if found is None:
        return None
    if found.kind == "fallback":  # visible, hence no wrong answer: one line is enough
        return program, found, tier

    def fails(candidate: Program) -> bool:
        begins()
        if not ends(candidate):
            return False
        again = examine_under(candidate, tier)
        return again is not None and again.kind == found.kind

    smallest = shrink(program, fails)
    last = examine_under(smallest, tier) or found
    for stage in _BISECTION:
        begins()
        if examine_under(smallest, stage) is not None:
            return smallest, last, stage
    return smallest, last, tier


class _Endless(BaseException):
    """No `except Exception` of a program's own takes it."""


def ends(program: Program, longest: float = _LONGEST) -> bool:
    """Whether eager comes to an end: shrinking takes the step of a `while` loop away too."""

    def stop(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, longest)
        observe(program.source(), lambda f: f)
    except _Endless:
        return False
    except Exception:  # for the comparison to tell
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return True
