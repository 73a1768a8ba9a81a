"""Sizes that a number of a call makes of a dimension: windows, steps, parts.

Comes in: the arguments of a call, one of whose numbers is a symbol and no size of a tensor (the
kernel of a pool, the groups of a norm). Goes out: expressions that the sizes of its results may be,
and what reads them off results at several vectors of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...symbols.context import Context
from ...symbols.expr import Expr, Integer
from ...symbols.polynomial import product
from ...symbols.size import Size, expr_of, size_of, value_of
from ..node_meta import tensors_in
from ..symbolic.sym_node import as_dimension, as_dimensions

__all__ = ["Unlike", "Windows", "windows_in"]

_NUMBERS, _DIMS = 2, 6  # of a call, that are tried
_MARGINS = range(-4, 8)  # what paddings add to a dimension and kernels take away
_FACTORS = 4  # of a product besides a constant


class Unlike(Exception):
    """The results at two vectors are not the same but for sizes."""


def windows_in(arguments: Any) -> list[Expr]:
    """What a window of that many elements, a step or a number of parts makes of a dimension. The
    number is guarded to be one.
    """
    tensors = list(tensors_in(arguments))
    dims = list(dict.fromkeys(n for t in tensors for n in as_dimensions(t.shape)))[:_DIMS]
    made: list[Any] = []
    for number in list(dict.fromkeys(_numbers_in(arguments)))[:_NUMBERS]:
        if not number > 0:
            continue
        for dim in dims:
            made += (dim + number, dim - number, dim - number + 1)
            parts = [(dim - margin) // number for margin in _MARGINS]
            made += [*parts, *(part + 1 for part in parts), dim // (number * number)]
    return list(map(expr_of, made))


def _numbers_in(value: Any) -> Iterator[Any]:
    """Those that are no sizes of a tensor's."""
    if isinstance(value, torch.SymInt):
        number = as_dimension(value)
        if isinstance(number, Size):
            yield number
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers_in(item)


class Windows:
    """Numbers of results as such expressions, and products of them: those that have the values seen
    at all vectors, since many have two small numbers.
    """

    def __init__(
        self, exprs: Sequence[Expr], vectors: Sequence[Mapping[Any, int]], context: Context
    ) -> None:
        self._context = context
        self._known: dict[tuple[int, ...], Expr] = {}
        for expr in exprs:
            size = size_of(expr, context)
            values = tuple(value_of(size, dict(known)) for known in vectors)
            if len(set(values)) > 1 and all(values):
                self._known.setdefault(values, expr)

    def __call__(self, numbers: Sequence[int]) -> Any:
        is_told = all(type(number) is int for number in numbers)  # data decide others
        expr = self._of(tuple(numbers), _FACTORS) if is_told else None
        if expr is None:
            raise Unlike
        return size_of(expr, self._context)

    def _of(self, numbers: tuple[int, ...], depth: int) -> Expr | None:
        if len(set(numbers)) == 1:
            return Integer(numbers[0])
        if numbers in self._known or not depth:
            return self._known.get(numbers)
        for values, expr in self._known.items():
            if not any(n % v for n, v in zip(numbers, values, strict=True)):
                rest = tuple(n // v for n, v in zip(numbers, values, strict=True))
                if (found := self._of(rest, depth - 1)) is not None:
                    return product(expr, found)
        return None
