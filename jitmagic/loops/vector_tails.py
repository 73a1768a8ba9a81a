"""Finds the points that eager's CPU kernels compute by scalar code, after the last whole vector.

In: the operands of an elementwise operation and its result. Out: a condition on a point of the
result. ATen's scalar code and its vector code disagree on the maximum of zeros of different signs:
`std::max` returns the first operand, `_mm512_max_ps` the second. The layout is that of
TensorIterator: dimensions that are contiguous in all operands are merged, and the innermost one is
cut into registers (aten/src/ATen/native/cpu/Loops.h).

Above 32768 elements eager splits the work over threads and each thread's part ends in a tail of its
own; that is not modelled, because the number of threads may change between calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..devices.cpu import aten_vector_bytes
from ..symbols.size import Dimension, expr_of, hint_of, is_same
from .builder import LoopBuilder, Out
from .expr import position
from .ir import IndexValue, Value
from .promotion import Operand
from .tensor_view import Point, TensorView
from .values import compute

__all__ = ["Tail", "tail_at"]

Tail = Value | bool


def tail_at(builder: LoopBuilder, out: Out, operands: Sequence[Operand], point: Point) -> Tail:
    """Return whether eager computes this point of the result by scalar code; a bool if that is the
    same for all points.
    """
    spec = out.spec
    if spec.device.type != "cpu" or not spec.dtype.is_floating_point:
        return False
    steps = [spec.stride, *(_steps(builder, one, out) for one in operands if one is not None)]
    run = _innermost_run(spec.shape, steps)
    if run is None:
        return True
    length: Dimension = 1
    for dim in run:
        length = length * spec.shape[dim]
    lanes = aten_vector_bytes() // spec.dtype.itemsize
    whole = length // lanes * lanes
    if isinstance(whole, int) and whole in (0, length):
        return whole == 0
    at = position([point[dim] for dim in run], [spec.stride[dim] for dim in run])
    return compute("ge", IndexValue(at), IndexValue(expr_of(whole)))


def _steps(builder: LoopBuilder, operand: Operand, out: Out) -> tuple[Dimension, ...]:
    """Return the operand's strides over the result's dimensions; 0 along broadcast ones."""
    spec = out.spec
    rank = len(spec.shape)
    if not isinstance(operand, TensorView) or not operand.shape:
        return (0,) * rank
    missing = rank - len(operand.shape)
    placed = builder.layout_of(operand)
    own = spec.stride[missing:] if placed is None else placed[1]
    if operand.dtype is not spec.dtype:  # TensorIterator converts it first, into new memory
        own = spec.stride[missing:]
    moving = (step if size != 1 else 0 for size, step in zip(operand.shape, own, strict=True))
    return (0,) * missing + tuple(moving)


def _innermost_run(
    shape: Sequence[Dimension], steps: Sequence[Sequence[Dimension]]
) -> list[int] | None:
    """Return the dimensions that TensorIterator merges into its innermost one; None if it does not
    vectorise: an operand has gaps, or more than one is broadcast.
    """
    dims = sorted(
        (dim for dim, size in enumerate(shape) if size != 1), key=lambda d: hint_of(steps[0][d])
    )
    if not dims:
        return None
    first, *rest = dims
    repeated = [one for one in steps if is_same(one[first], 0)]
    if len(repeated) > 1 or not all(is_same(one[first], 1) or one in repeated for one in steps):
        return None
    run = [first]
    for dim in rest:
        if not all(is_same(one[dim], one[run[-1]] * shape[run[-1]]) for one in steps):
            break
        run.append(dim)
    return run
