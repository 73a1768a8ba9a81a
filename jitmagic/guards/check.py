"""Evaluates guards in Python: the reference implementation of the native guard program.

Input: guards and a frame's snapshot. Output: the first guard that fails (`check`), a sentence on
why (`why`), the guarded condition (`show_guard`) and the edit that would avoid a recompile
(`advice`). Each looks up the guard's class in `KINDS` and calls its row in kinds/, which makes the
sentence. `frame.ledger.why_not` calls them for warnings, `explain` and `f.why()`. Invariant: agrees
with the native program of `frame/native.py` for every guard and frame (tests/guards compares them)
and runs no user code.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..bytecode import FrameSnapshot
from .guard import Guard, InRange, ValueEquals
from .kinds import KINDS
from .read import UNREADABLE, read_source
from .source import has_users_name

__all__ = ["advice", "check", "holds", "is_number", "is_other_number", "show_guard", "why"]

_NUMPY_NUMBERS = ("float32", "float64", "int32", "int64")


def check(guards: Iterable[Guard], frame: FrameSnapshot) -> Guard | None:
    """Return the first guard that fails for the frame, or None."""
    return next((guard for guard in guards if not holds(guard, frame)), None)


def holds(guard: Guard, frame: FrameSnapshot) -> bool:
    """Return whether one guard holds for the frame."""
    return KINDS[type(guard)].differs(guard, frame) is None


def why(guard: Guard, frame: FrameSnapshot) -> str:
    """Return why a guard fails, in a sentence: `x.shape is (3, 4), was (2, 4)`."""
    return KINDS[type(guard)].differs(guard, frame) or "nothing differs"


def show_guard(guard: Guard) -> str:
    """Return the guarded condition in one readable line: `x: float32[8, 64] cpu`."""
    return KINDS[type(guard)].show(guard)


def advice(guard: Guard, frame: FrameSnapshot) -> str:
    """Return the edit that makes calls like this one fit the variant; "" if none is known."""
    kind = KINDS[type(guard)]
    # In a resume function a path may start at a stack value, which user code cannot name.
    if not all(map(has_users_name, kind.sources(guard))):
        return ""
    return kind.advise(guard, frame)


def is_other_number(guard: ValueEquals | InRange, frame: FrameSnapshot) -> bool:
    """Return whether a guard on a float or an int fails only because its value differs."""
    try:
        value = read_source(guard.source, frame)
    except UNREADABLE:
        return False
    if not is_number(value) or holds(guard, frame):
        return False
    return isinstance(guard, InRange) or type(value) is type(guard.value)


def is_number(value: object) -> bool:
    """Return whether `value` is a float, an int, or such a number of numpy."""
    kind = type(value)
    return kind in (float, int) or (kind.__module__ == "numpy" and kind.__name__ in _NUMPY_NUMBERS)
