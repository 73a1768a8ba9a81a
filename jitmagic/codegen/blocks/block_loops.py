"""Chooses the loops that advance by blocks, and those whose rounds may run in parallel.

In: the loop form of a kernel, its Structure. Out: the loop form in which the loops of each pass
contain one of kind "block": its last axis advances by a block, and values that depend on it are
blocks. The axis is the one along which most loads and stores touch neighbouring elements, as for
the lanes of C++ kernels (vector_lanes.py), which assume more about dynamic sizes. Outer axes become
one parallel loop, of blocks or not. So do the loops of a pass that nothing encloses: a parallel
loop that accumulates adds the totals of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import CannotRender
from ...lazy_dataclass import replace
from ...loops.expr import Axis
from ...symbols.size import hint_of
from ..kernel import Atomic, For, Kernel, Statement
from ..kernel_walk import statements
from ..loop_form import Body, on_threads, plain_loops
from ..loop_structure import Pass, Structure, scans_of
from ..vector_lanes import accesses_of, likely_extent, neighbours

__all__ = ["with_blocks"]

# Rows below this extent become blocks of rows, which read memory in strides: an instruction takes
# about 5 ns and 0.03 ns an element, a strided load 0.5 ns an element.
SHORT = 32
MANY = 64  # rows that are worth a block
MOST_OF_SCAN = 1 << 12  # elements of few rows that instructions add one by one
FEWEST = 4  # an axis below this extent is a block only if all are


def with_blocks(kernel: Kernel, nest: Structure) -> Kernel:
    """Return the kernel with a loop of blocks around the points of each pass."""
    adds = any(isinstance(each, Atomic) for each in statements(kernel.body))
    outer, inner = _block_axes(nest, adds)
    body = kernel.body
    for _ in nest.outer:
        body = _only_loop(body).body
    if outer is not None:
        axes = (*(axis for axis in nest.outer if axis != outer), outer)
        body = (For(axes, body, "block"),)
    elif nest.outer:
        body = (For(nest.outer, _blocked(body, nest.passes, inner)),)
    else:
        body = _blocked(body, nest.passes, inner, is_one=not adds)
    if not adds:  # additions stay in order
        body = tuple(on_threads(each) if isinstance(each, For) else each for each in body)
    return replace(kernel, body=body)


def _only_loop(body: Sequence[Statement]) -> For:
    (loop,) = body
    assert isinstance(loop, For)
    return loop


def _block_axes(nest: Structure, adds: bool) -> tuple[Axis | None, list[Axis]]:
    """Return the outer axis of blocks; where it is None, the axis of each pass that has axes."""
    looped = [each for each in nest.passes if each.axes]
    if adds:
        last = nest.outer[-1] if nest.outer and not looped else None
        return last, [each.axes[-1] for each in looped]
    if any(map(scans_of, looped)):
        return _rows_of_scans(nest, looped), []
    inner = [_best(each.axes, (each,), nest) for each in looped]
    if not nest.outer:
        return None, [axis for axis, _ in inner]
    outer, outer_score = _best(nest.outer, looped or nest.passes, nest)
    # Strided loads of long blocks take less time than the instructions of many short ones.
    long = [axis for axis in nest.outer if likely_extent(axis) >= MANY]
    if not inner and long and 2 * likely_extent(outer) <= SHORT:
        return _best(long, nest.passes, nest)[0], []
    score = sum(each for _, each in inner)
    longest = max((likely_extent(axis) for axis, _ in inner), default=0)
    is_short = longest < SHORT and hint_of(outer.extent) >= MANY
    if inner and score > 0 and score >= outer_score and not is_short:
        return None, [axis for axis, _ in inner]
    return outer, []


def _rows_of_scans(nest: Structure, looped: Sequence[Pass]) -> Axis:
    """Return the axis of blocks of a nest with scans, each of whose elements is of another row."""
    outer = _best(nest.outer, looped, nest)[0] if nest.outer else None
    longest = max(likely_extent(axis) for each in looped for axis in each.axes)
    if outer is None or (likely_extent(outer) < MANY and longest > MOST_OF_SCAN):
        raise CannotRender("blocks", "few long rows", "scan")
    return outer


def _best(axes: Sequence[Axis], passes: Sequence[Pass], nest: Structure) -> tuple[Axis, int]:
    """Return the axis along which most accesses touch neighbouring elements, and its score. Of
    equal ones it is the longest, then the innermost.
    """
    accesses = accesses_of(passes)

    def rank(axis: Axis) -> tuple[bool, int, int]:
        score = sum(neighbours(access, axis, nest) for access in accesses)
        return likely_extent(axis) >= FEWEST, score, likely_extent(axis)

    chosen = max(reversed(axes), key=rank)
    return chosen, rank(chosen)[1]


def _blocked(
    body: Body, passes: Sequence[Pass], lanes: Sequence[Axis], is_one: bool = False
) -> Body:
    """Return the statements with the loops of each pass ending in blocks along its axis. `is_one`:
    they become one loop, so that its rounds can run in parallel.
    """
    left = iter(zip([each.axes for each in passes if each.axes], lanes, strict=True))
    made: list[Statement] = []
    for each in body:
        if not isinstance(each, For):
            made.append(each)
            continue
        axes, lane = next(left)
        inside: Body = (each,)
        for _ in axes:
            inside = _only_loop(inside).body
        others = tuple(axis for axis in axes if axis != lane)
        blocks = For((*others, lane) if is_one else (lane,), inside, "block")
        made += [blocks] if is_one else plain_loops(others, (blocks,))
    return tuple(made)
