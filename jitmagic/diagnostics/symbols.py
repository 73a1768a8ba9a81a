"""What changes from call to call and is data of a trace, or had to be a constant of it, in words.

Comes in: a Trace. Goes out: a line for each size and number, with the user's line that reads it, or
for which it is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UserLine
from ..guards.guard import SizesRelate, TensorMatch
from ..guards.sizes import relation
from ..guards.source import describe
from ..symbols.scalar import Symbol
from ..trace.concrete import places_of
from ..trace.result import Trace
from .words import here

__all__ = ["changing"]


def changing(traced: Trace) -> list[str]:
    """Constants first, then sizes, then numbers."""
    constants = [
        f"{one.name}: a constant, for {one.why}{_at(one.where)}" for one in traced.specialized
    ]
    return constants + list(_sizes(traced)) + list(_numbers(traced))


def _at(where: UserLine | None) -> str:
    return f" ({here(where)})" if where else ""


def _sizes(traced: Trace) -> Iterator[str]:
    for guard in traced.guards:
        if isinstance(guard, TensorMatch):
            for dim in guard.free_sizes:
                yield f"{describe(guard.source)}.shape[{dim}]: a symbol{_at(guard.where)}"
    limits = {end for symbol in places_of(traced) for end in symbol.limits}
    for guard in traced.guards:
        if isinstance(guard, SizesRelate) and not _is_given(guard, limits):
            yield f"only where {relation(guard)}{_at(guard.where)}"


def _is_given(guard: SizesRelate, limits: set[int]) -> bool:
    """Whether it only says the range that a symbol begins with, that two share a symbol, or what a
    stride is: no line of the user's asked for it.
    """
    left, right = guard.left, guard.right
    if isinstance(left, Symbol):
        return guard.op == "==" or getattr(right, "value", None) in limits
    return False


def _numbers(traced: Trace) -> Iterator[str]:
    for entry in traced.inputs:
        if entry.is_scalar:
            kind = "a float" if entry.spec.dtype.is_floating_point else "an int"
            yield f"{describe(entry.source)}: {kind}, data of the graph"
