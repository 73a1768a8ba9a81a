"""Detects that consecutive variants of a frame differ by one in a size or an int.

Input: the newest variants of a frame, each of which served only one call, and a call that fits none
of them. Output: the failing guard whose number grows by one from variant to variant: a size (of a
cache, a list), or an int that is a constant of the trace. A growing size rarely shrinks again, so
each variant would serve one call. An int may be a loop index, which starts over in the next loop.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..bytecode import FrameSnapshot
from ..guards.check import holds
from ..guards.guard import Guard, InRange, LengthIs, TensorMatch, ValueEquals
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Argument, Source

__all__ = ["Guards", "differing_loops", "grown_int", "grown_size", "int_step"]

Guards = tuple[Guard, ...]


def grown_size(variants: Sequence[Guards], snapshot: FrameSnapshot) -> Guard | None:
    """Return the newest variant's first guard on a size that grows by one per variant, or None."""
    for guard in variants[0]:
        if isinstance(guard, TensorMatch | LengthIs) and not holds(guard, snapshot):
            sizes = [_sizes(_like(guard, guards)) for guards in reversed(variants)]
            if _grow_by_one([*sizes, _sizes_now(guard, snapshot)]):
                return guard
    return None


def grown_int(variants: Sequence[Guards], snapshot: FrameSnapshot) -> ValueEquals | None:
    """Return the guard on a constant int that grew by one per variant, or None.

    Also None if a guard on something other than an int fails in the newest variant, variants[0].
    """
    failing = [guard for guard in variants[0] if not holds(guard, snapshot)]
    ints = [g for g in failing if isinstance(g, ValueEquals) and int_step(g, snapshot) is not None]
    if len(ints) < len(failing):
        return None
    for guard in ints:
        if _grow_by_one([_sizes(_like(guard, guards)) for guards in reversed(variants)]):
            return guard
    return None


def int_step(guard: ValueEquals, snapshot: FrameSnapshot) -> int | None:
    """Return the frame's int minus the guard's, or None if one of them is not an int."""
    value, wanted = _read(guard.source, snapshot), guard.value
    return value - wanted if type(value) is int and type(wanted) is int else None


def differing_loops(
    variants: Iterable[Mapping[int, Guards]], snapshot: FrameSnapshot
) -> frozenset[int]:
    """Return the heads of loops whose guards fail for the frame in at least two variants.

    Each of `variants` maps the head of a loop without tensor work to the guards that its iterations
    added.
    """
    counts = Counter(
        head for loops in variants for head, guards in loops.items() if _differs(guards, snapshot)
    )
    return frozenset(head for head, count in counts.items() if count > 1)


def _differs(guards: Guards, snapshot: FrameSnapshot) -> bool:
    """Return whether a guard fails; those on number arguments do not count: they can be symbols."""
    return any(
        not holds(guard, snapshot)
        for guard in guards
        if not (isinstance(guard, ValueEquals | InRange) and isinstance(guard.source, Argument))
    )


def _like(guard: Guard, guards: Guards) -> Guard | None:
    """Return another variant's guard on the same fact."""
    key = (type(guard), guard.source)  # type: ignore[attr-defined]
    return next((g for g in guards if (type(g), getattr(g, "source", None)) == key), None)


def _sizes(guard: Guard | None) -> tuple[int, ...]:
    match guard:
        case TensorMatch(spec=spec):
            return tuple(spec.shape)
        case LengthIs(length=length):
            return (length,)
        case ValueEquals(value=value) if type(value) is int:
            return (value,)
    return ()


def _sizes_now(guard: TensorMatch | LengthIs, snapshot: FrameSnapshot) -> tuple[int, ...]:
    value = _read(guard.source, snapshot)
    if isinstance(guard, TensorMatch):
        return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    return (len(value),) if isinstance(value, list | tuple | dict) else ()


def _read(source: Source, snapshot: FrameSnapshot) -> object:
    try:
        return read_source(source, snapshot)
    except UNREADABLE:
        return None


def _grow_by_one(sizes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether each tuple is the one before plus one, always in the same positions."""
    first, *rest = sizes
    if not first or any(len(size) != len(first) for size in rest):
        return False
    steps = {
        tuple(b - a for a, b in zip(left, right, strict=True))
        for left, right in itertools.pairwise(sizes)
    }
    return len(steps) == 1 and set(steps.pop()) | {0} == {0, 1}
