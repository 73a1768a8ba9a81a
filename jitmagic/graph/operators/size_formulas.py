"""Lists candidate formulas for sizes that depend on a number argument: windows, steps, parts.

Input: the arguments of a call, one of whose numbers is a symbol but not a size of a tensor (the
kernel of a pool, the groups of a norm). Output: expressions that the sizes of its results may be,
and a reader that recognises them in results at several size tuples.
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

__all__ = ["FormulaReader", "ResultsDiffer", "candidate_sizes"]

_NUMBERS, _DIMS = 2, 6  # how many numbers and dimensions of a call are combined
_MARGINS = range(-4, 8)  # kernel extent minus padding: subtracted from a dimension
_FACTORS = 4  # at most, of a product, without its constant


class ResultsDiffer(Exception):
    """Raised if the results at two size tuples differ in more than sizes."""


def candidate_sizes(arguments: object) -> list[Expr]:
    """Return the candidate sizes for windows, steps or parts of the number along a dimension.

    The number is guarded to be positive.
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


def _numbers_in(value: object) -> Iterator[Any]:
    """Yield the symbolic numbers that are not sizes of a tensor."""
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


class FormulaReader:
    """Finds the candidate, or product of candidates, that has the given values at all size tuples.
    Two tuples would not suffice: many formulas agree at two small numbers.
    """

    def __init__(
        self, exprs: Sequence[Expr], samples: Sequence[Mapping[Any, int]], context: Context
    ) -> None:
        self._context = context
        self._known: dict[tuple[int, ...], Expr] = {}
        for expr in exprs:
            size = size_of(expr, context)
            values = tuple(value_of(size, dict(known)) for known in samples)
            if len(set(values)) > 1 and all(values):
                self._known.setdefault(values, expr)

    def __call__(self, numbers: Sequence[int]) -> Any:
        is_known = all(type(number) is int for number in numbers)  # others are data-dependent
        expr = self._of(tuple(numbers), _FACTORS) if is_known else None
        if expr is None:
            raise ResultsDiffer
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
