"""Symbols for dimensions and strides of tensor inputs.

Takes a tensor, its source, and which of its dimensions and strides may vary. Returns its spec with
Sizes, and the guards: the parts that TensorMatch leaves free, the ranges of sizes, and strides as
products of sizes. Dimensions of equal size, now and in the existing variants, share one symbol,
guarded by equality. Where that guard fails, the next variant has separate symbols.

A stride is a symbol of its own where it varies and is not a product: that of a row `x[:, t]`
depends on a size that the tensor does not have. Outer strides are products with it.

Sizes 0 and 1 are never symbols, because broadcasting, contiguity and empty results depend on them;
nor are strides of 0 and 1. The exceptions have no hint: unbacked dimensions, those that the frame
makes grow (growing_sizes.py), and those that are one in some calls (varying_sizes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from ...guards.guard import Guard, SizesRelate
from ...guards.source import Source
from ...lazy_dataclass import dataclass, replace
from ...spec import TensorSpec
from ...symbols.expr import Integer
from ...symbols.interval import INT64, GrowingRange, Interval, UnbackedRange
from ...symbols.size import (
    Dimension,
    Size,
    SizeOf,
    StrideOf,
    hint_of,
    origin_at,
    size_of,
    stride_place,
)
from ...symbols.symbolic_numbers import Symbol

__all__ = [
    "LARGEST", "SMALLEST", "STRIDES", "SymbolicShape", "guards_of_range", "symbolic_shape",
]  # fmt: skip

# The product of two sizes of 2**31 fits an int64, in which native guards compute.
SMALLEST, LARGEST = 2, 2**31
STRIDES = Interval(2, 2**40)


@dataclass(frozen=True, slots=True)
class SymbolicShape:
    """The symbolic spec of a tensor, its free sizes and strides, and the guards on them."""

    spec: TensorSpec
    free_sizes: tuple[int, ...]
    free_strides: tuple[int, ...]
    guards: tuple[Guard, ...]


def symbolic_shape(
    symbols: object,
    source: Source,
    spec: TensorSpec,
    varying: Mapping[int, Interval],
    known: Mapping[int, Size],
) -> SymbolicShape:
    """Return the spec with symbols for `varying`, by index, or the sizes in `known`; `symbols`:
    those of the trace.
    """
    guards: list[Guard] = []

    def symbol_at(place: int) -> Dimension:
        if (size := known.get(place)) is not None:
            own = Symbol(f"size {place}", int, INT64, SizeOf(source, place))
            guards.append(SizesRelate("==", own, size.expr))
            return size
        hint = spec.shape[place] if place >= 0 else spec.stride[stride_place(place)]
        limits = varying[place]
        kinds = isinstance(limits, UnbackedRange), isinstance(limits, GrowingRange)
        return _symbol(symbols, origin_at(source, place, *kinds), hint, limits, guards)

    shape: list[Any] = [symbol_at(d) if d in varying else n for d, n in enumerate(spec.shape)]
    strides = _products(spec, shape)
    if strides is None:
        strides = _strides(spec, shape, varying, symbol_at)
    free = tuple(dim for dim, stride in enumerate(strides) if isinstance(stride, Size))
    guards += [_is_stride(source, dim, strides[dim]) for dim in free]
    made = replace(spec, shape=tuple(shape), stride=strides)
    sizes = tuple(place for place in varying if place >= 0)
    return SymbolicShape(made, sizes, free, tuple(guards))


def _symbol(
    symbols: Any,
    origin: SizeOf | StrideOf,
    hint: int,
    range: Interval,
    guards: list[Guard],
) -> Dimension:
    unbacked = isinstance(range, UnbackedRange)
    # The suffix shows in messages that the symbol has no hint.
    name = f"s{len(symbols.sizes)}" + ("g" if isinstance(range, GrowingRange) else "u") * unbacked
    limits = Interval(range.low, range.high)
    own = Symbol(name, int, limits, origin)
    symbol: Symbol = symbols.shared_symbol(own, hint)
    if symbol is own and unbacked:
        # No hint: nothing is decided by the size of this call, which is only an example for meta
        # kernels.
        symbols.add(symbol, None, hint)
    elif symbol is own:
        symbols.add(symbol, hint)
    if symbol is own:
        guards.append(SizesRelate(">=", symbol, Integer(int(range.low))))
        guards.append(SizesRelate("<=", symbol, Integer(int(range.high))))
    else:
        guards.append(SizesRelate("==", own, symbol))
    return size_of(symbol, symbols)


def _is_stride(source: Source, dim: int, stride: Dimension) -> Guard:
    assert isinstance(stride, Size)
    symbol = Symbol(f"stride {dim}", int, INT64, StrideOf(source, dim))
    return SizesRelate("==", symbol, stride.expr)


def _strides(
    spec: TensorSpec,
    shape: Sequence[Dimension],
    varying: Container[int],
    symbol_at: Callable[[int], Dimension],
) -> tuple[Any, ...]:
    """Return strides from the innermost on: products if they match, else symbols or constants."""
    made: list[Dimension] = [0] * len(shape)
    step: Dimension = 1
    # Of equal strides the later dimension is the inner one, as in a contiguous tensor.
    for dim in sorted(range(len(shape)), key=lambda dim: (spec.stride[dim], -dim)):
        stride = spec.stride[dim]
        if hint_of(step) != stride:
            step = symbol_at(stride_place(dim)) if stride_place(dim) in varying else stride
        made[dim] = step
        step = shape[dim] * step
    return tuple(made)


def _products(spec: TensorSpec, shape: Sequence[Dimension]) -> tuple[Any, ...] | None:
    """Return strides as products of sizes, if the tensor is dense in some dimension order."""
    rank = len(shape)
    # Row-major order first: it is the usual layout, and a dimension of size 1 fits several orders.
    rows = list(range(rank - 1, -1, -1))
    for order in (rows, sorted(rows, key=lambda dim: (spec.stride[dim], -dim))):
        made: list[Dimension] = [0] * rank
        step: Dimension = 1
        for dim in order:
            made[dim] = step
            if spec.shape[dim] == 1 and hint_of(step) != spec.stride[dim]:
                made[dim] = spec.stride[dim]  # insignificant: no element is a step away
            # torch gives tensors without elements the strides of a dimension of size 1.
            step = step if _is_zero(shape[dim]) else shape[dim] * step
        if tuple(map(hint_of, made)) == spec.stride:
            return tuple(made)
    return None


def _is_zero(size: object) -> bool:
    return type(size) is int and size == 0


def guards_of_range(symbol: Symbol, range: Interval) -> tuple[Guard, ...]:
    """Return guards that a size keeps to a narrower range."""
    old = symbol.range
    ends = (">=", range.low, old.low), ("<=", range.high, old.high)
    return tuple(
        SizesRelate(op, symbol, Integer(int(end))) for op, end, before in ends if end != before
    )
