"""Dimensions and strides of tensor inputs that are symbols.

Comes in: a tensor, where it was found, and which of its dimensions and strides may vary. Goes out:
its spec with Sizes, and the guards: what TensorMatch leaves free, that sizes keep to their ranges,
that strides are products of them. Dimensions of equal size, now and in the variants there are,
share one symbol, guarded by equality: where that fails the next variant has symbols of their own.

A stride is a symbol where it varies and is no product: that of a row `x[:, t]` depends on a size
that the tensor does not have. Strides further out are products with it, where they were.

Sizes 0 and 1 are never symbols: broadcasting, contiguity and empty results depend on them; but for
dimensions that are unbacked, that the frame itself makes grow (growing_sizes.py), or that are one
in some calls (maybe_one_dims.py), which have no hint. Nor are strides of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...guards.guard import Guard, SizesRelate
from ...guards.source import Source
from ...spec import TensorSpec
from ...symbols.expr import Integer
from ...symbols.interval import INT64, GrowingRange, Interval, UnbackedRange
from ...symbols.scalar import Symbol
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

__all__ = [
    "LARGEST", "SMALLEST", "STRIDES", "SymbolicShape", "guards_of_range", "symbolic_shape",
]  # fmt: skip

SMALLEST, LARGEST = 2, 2**31
STRIDES = Interval(2, 2**40)


@dataclass(frozen=True, slots=True)
class SymbolicShape:
    """What is known of a tensor in every call."""

    spec: TensorSpec
    free_sizes: tuple[int, ...]
    free_strides: tuple[int, ...]
    guards: tuple[Guard, ...]


def symbolic_shape(
    symbols: Any,
    source: Source,
    spec: TensorSpec,
    varying: Mapping[int, Interval],
) -> SymbolicShape:
    """The spec with what is `varying`, by place, as symbols; `symbols`: those of the trace."""
    guards: list[Guard] = []

    def symbol_at(place: int) -> Dimension:
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
    name = f"s{len(symbols.sizes)}" + ("g" if isinstance(range, GrowingRange) else "u") * unbacked
    limits = Interval(range.low, range.high)
    own = Symbol(name, int, limits, origin)
    symbol: Symbol = symbols.shared_symbol(own, hint)
    if symbol is own and unbacked:
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
    """From the innermost dimension on: what the ones before lead to, a symbol where it varies and
    is another, else a constant.
    """
    made: list[Dimension] = [0] * len(shape)
    step: Dimension = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (spec.stride[dim], -dim)):
        stride = spec.stride[dim]
        if hint_of(step) != stride:
            step = symbol_at(stride_place(dim)) if stride_place(dim) in varying else stride
        made[dim] = step
        step = shape[dim] * step
    return tuple(made)


def _products(spec: TensorSpec, shape: Sequence[Dimension]) -> tuple[Any, ...] | None:
    """Strides as products of sizes, where the tensor is dense in some order of its dimensions."""
    rank = len(shape)
    rows = list(range(rank - 1, -1, -1))
    for order in (rows, sorted(rows, key=lambda dim: (spec.stride[dim], -dim))):
        made: list[Dimension] = [0] * rank
        step: Dimension = 1
        for dim in order:
            made[dim] = step
            if spec.shape[dim] == 1 and hint_of(step) != spec.stride[dim]:
                made[dim] = spec.stride[dim]  # says nothing: nobody takes a step there
            # torch lays tensors of no elements out as if that dimension were of size 1.
            step = step if _is_zero(shape[dim]) else shape[dim] * step
        if tuple(map(hint_of, made)) == spec.stride:
            return tuple(made)
    return None


def _is_zero(size: Any) -> bool:
    return type(size) is int and size == 0


def guards_of_range(symbol: Symbol, range: Interval) -> tuple[Guard, ...]:
    """That a size keeps to a narrower range."""
    old = symbol.range
    ends = (">=", range.low, old.low), ("<=", range.high, old.high)
    return tuple(
        SizesRelate(op, symbol, Integer(int(end))) for op, end, before in ends if end != before
    )
