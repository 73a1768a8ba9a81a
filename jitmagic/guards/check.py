"""Evaluates guards in Python: the reference implementation of the native guard program.

Input: guards and a frame's snapshot. Output: the first guard that fails (`check`), a sentence on
why (`why`), the guarded condition (`show_guard`) and the edit that would avoid a recompile
(`advice`). Each looks up the guard's class in `KINDS` and calls its row in kinds/, which makes the
sentence. `frame.ledger.why_not` calls them for warnings, `explain` and `f.why()`. Invariant: for
each guard it agrees with the native program of `frame/native.py` (tests/guards compares them), and
it runs no user code. Of several guards that fail, the native program may stop at another one: its
steps are sorted by cost, while `check` follows the order in which the facts were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..symbols.size import stride_place
from .guard import Guard, InRange, NumbersRelate, SizesRelate, TensorMatch, ValueEquals
from .kinds import KINDS
from .read import UNREADABLE, read_source
from .source import has_users_name

__all__ = [
    "advice", "check", "differing_sizes", "differs_in_sizes", "has_rank", "holds", "is_number",
    "is_other_number", "show_guard", "why",
]  # fmt: skip

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


def differs_in_sizes(guards: Iterable[Guard], frame: FrameSnapshot) -> bool:
    """Return whether only sizes and numbers keep a variant from fitting the frame."""
    for guard in guards:
        match guard:
            case SizesRelate() | NumbersRelate():
                continue
            case TensorMatch() if differing_sizes(guard, frame):
                continue
            case ValueEquals() | InRange() if is_other_number(guard, frame):
                continue
        if not holds(guard, frame):
            return False
    return True


def has_rank(guard: TensorMatch, frame: FrameSnapshot) -> bool:
    """Return whether the tensor has the guard's class and number of dimensions."""
    try:
        value: Any = read_source(guard.source, frame)
    except UNREADABLE:
        return False
    cls: type = type(value)
    if cls is not guard.spec.cls:  # reading attributes of a subclass may run its code
        return False
    is_strided = value.layout is torch.strided and not value.is_nested
    return is_strided and value.dim() == len(guard.spec.shape)


def differing_sizes(guard: TensorMatch, frame: FrameSnapshot) -> set[int]:
    """Return the indices of differing sizes and strides if the tensor fits the guard otherwise."""
    spec = guard.spec
    if not has_rank(guard, frame):
        return set()
    value: torch.Tensor = read_source(guard.source, frame)
    found = {d for d, n in enumerate(value.shape) if n != spec.shape[d]}
    found |= {stride_place(d) for d, n in enumerate(value.stride()) if n != spec.stride[d]}
    resized = replace(spec, shape=tuple(value.shape), stride=tuple(value.stride()))
    return found if found and holds(replace(guard, spec=resized), frame) else set()
