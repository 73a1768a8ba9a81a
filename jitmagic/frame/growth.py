"""growth: whether what a frame's variants differ in grows by one with every call.

Comes in: the newest variants of a frame, none of which was of use a second time, and a call that
fits none of them. Goes out: the guard that shows it, of a size (a cache, a list) or of an int that
is a constant of the trace. Such variants serve one call each: a size that has grown does not shrink
again, while an int may be the index of a loop and come again in the next round.
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

__all__ = ["Guards", "counted", "differing_loops", "grown_int", "grown_size"]

Guards = tuple[Guard, ...]


def grown_size(variants: Sequence[Guards], snapshot: FrameSnapshot) -> Guard | None:
    """The first guard of the newest variant (variants[0]) on a size that has grown by one from each
    variant to the next, and to this call.
    """
    for guard in variants[0]:
        if isinstance(guard, TensorMatch | LengthIs) and not holds(guard, snapshot):
            sizes = [_sizes(_like(guard, guards)) for guards in reversed(variants)]
            if _grow_by_one([*sizes, _sizes_now(guard, snapshot)]):
                return guard
    return None


def grown_int(variants: Sequence[Guards], snapshot: FrameSnapshot) -> ValueEquals | None:
    """The same of an int that is a constant, from each of `variants` to the next; the frame has any
    other int. None where more than ints differ.
    """
    failing = [guard for guard in variants[0] if not holds(guard, snapshot)]
    ints = [g for g in failing if isinstance(g, ValueEquals) and counted(g, snapshot) is not None]
    if len(ints) < len(failing):
        return None
    for guard in ints:
        if _grow_by_one([_sizes(_like(guard, guards)) for guards in reversed(variants)]):
            return guard
    return None


def counted(guard: ValueEquals, snapshot: FrameSnapshot) -> int | None:
    """How much greater the frame's int is than the guard's; None: it is no int."""
    value, wanted = _read(guard.source, snapshot), guard.value
    return value - wanted if type(value) is int and type(wanted) is int else None


def differing_loops(
    variants: Iterable[Mapping[int, Guards]], snapshot: FrameSnapshot
) -> frozenset[int]:
    """The loops that rely on other values in two variants at least than in the frame; `variants`:
    by the heads of loops without tensor work, the facts that their rounds rely on.
    """
    counts = Counter(
        head for loops in variants for head, guards in loops.items() if _differs(guards, snapshot)
    )
    return frozenset(head for head, count in counts.items() if count > 1)


def _differs(guards: Guards, snapshot: FrameSnapshot) -> bool:
    """Return whether something is another, and cannot be a symbol as numbers among the arguments
    can.
    """
    return any(
        not holds(guard, snapshot)
        for guard in guards
        if not (isinstance(guard, ValueEquals | InRange) and isinstance(guard.source, Argument))
    )


def _like(guard: Guard, guards: Guards) -> Guard | None:
    """The guard of another variant on the same fact."""
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
    """Whether each is the one before plus one, in the same of its positions (one or more)."""
    first, *rest = sizes
    if not first or any(len(size) != len(first) for size in rest):
        return False
    steps = {
        tuple(b - a for a, b in zip(left, right, strict=True))
        for left, right in itertools.pairwise(sizes)
    }
    return len(steps) == 1 and set(steps.pop()) | {0} == {0, 1}
