"""Chooses the loops that advance by blocks, and those whose rounds may run in parallel.

In: the loop form of a kernel, its Structure, the target. Out: the loop form in which the loops of
each pass contain one of kind "block": its last axis advances by a block, and values that depend on
it are blocks. The axis is the one along which vector_lanes.py would vectorise; where that has none,
the longest. Outer axes become one loop of kind "parallel", or "parallel block". So do the loops of
a pass that nothing encloses: a parallel loop that accumulates adds the totals of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...devices import Target
from ...lazy_dataclass import replace
from ...loops.expr import Axis
from ...symbols.size import hint_of
from ..kernel import Atomic, For, Kernel, Statement, statements
from ..loop_structure import Pass, Structure
from ..vector_lanes import choose_lanes

__all__ = ["with_blocks"]

# Rows below this extent become blocks of rows, which read memory in strides: an instruction takes
# about 5 ns and 0.03 ns an element, a strided load 0.5 ns an element.
SHORT = 32
MANY = 64  # rows that are worth a block


def with_blocks(kernel: Kernel, nest: Structure, target: Target) -> Kernel:
    """Return the kernel with a loop of blocks around the points of each pass."""
    adds = any(isinstance(each, Atomic) for each in statements(kernel.body))
    outer, inner = _block_axes(nest, target, adds)
    body = kernel.body
    for _ in nest.outer:
        body = _only_loop(body).body
    parallel = "" if adds else "parallel "  # additions stay in order
    if outer is not None:
        axes = (*(axis for axis in nest.outer if axis != outer), outer)
        return replace(kernel, body=(For(axes, body, f"{parallel}block"),))
    kind = "block" if nest.outer else f"{parallel}block"
    body = tuple(_blocked(body, nest.passes, inner, kind))
    if nest.outer:
        body = (For(nest.outer, body, parallel.strip() or "serial"),)
    return replace(kernel, body=body)


def _only_loop(body: Sequence[Statement]) -> For:
    (loop,) = body
    assert isinstance(loop, For)
    return loop


def _block_axes(nest: Structure, target: Target, adds: bool) -> tuple[Axis | None, list[Axis]]:
    """Return the outer axis of blocks; where it is None, the axis of each pass that has axes."""
    lanes = choose_lanes(nest, target)
    looped = [(n, each.axes) for n, each in enumerate(nest.passes) if each.axes]
    if adds:
        last = nest.outer[-1] if nest.outer and not looped else None
        return last, [axes[-1] for _, axes in looped]
    if lanes.outer is not None:
        return lanes.outer, []
    longest = _longest(nest.outer) if nest.outer else None
    inner = [lanes.passes[n][0] or _longest(axes) for n, axes in looped]
    is_short = max((hint_of(axis.extent) for axis in inner), default=0) < SHORT
    if longest is not None and is_short and (not inner or hint_of(longest.extent) >= MANY):
        return longest, []
    return None, inner


def _longest(axes: Sequence[Axis]) -> Axis:
    return max(axes, key=lambda axis: hint_of(axis.extent))


def _blocked(
    body: Sequence[Statement], passes: Sequence[Pass], lanes: Sequence[Axis], kind: str
) -> list[Statement]:
    """Return the statements with the loops of each pass ending in blocks along its axis."""
    left = iter(zip([each.axes for each in passes if each.axes], lanes, strict=True))
    return [_ending_in(each, *next(left), kind) if isinstance(each, For) else each for each in body]


def _ending_in(loop: For, axes: Sequence[Axis], lane: Axis, kind: str) -> For:
    """Return a pass's loops over `axes` with blocks along `lane` innermost."""
    body: tuple[Statement, ...] = (loop,)
    for _ in axes:
        body = _only_loop(body).body
    others = tuple(axis for axis in axes if axis != lane)
    if kind != "block":  # the rounds of one loop, which run in parallel
        return For((*others, lane), body, kind)
    made = For((lane,), body, kind)
    for axis in reversed(others):
        made = For((axis,), (made,))
    return made
