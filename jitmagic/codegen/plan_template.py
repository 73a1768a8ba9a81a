"""PlanTemplate: the plans of one graph for all sizes.

In: the plan of a schedule whose buffers have Sizes. Out: what the native executor reads, and a Plan
to look at, for each vector of values. Order, fusion, kernels and what shares memory are fixed;
shapes, arguments of ATen calls and places in the pool are computed by one function
(symbols/compiled.py). No text is written and nothing is compiled for a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from ..symbols.compiled import fill_function
from ..symbols.expr import Expr
from ..symbols.scalar import Symbol
from ..symbols.size import value_of
from .plan import Plan, SizeVector

__all__ = ["PlanTemplate"]

Constants = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """`symbols`: in the order of the values."""

    sized: Plan
    symbols: tuple[Symbol, ...]

    def plan(self, values: tuple[int, ...]) -> Plan:
        """The plan where the symbols have these values."""
        known: dict[Expr, int] = dict(zip(self.symbols, values, strict=True))
        made: Plan = _filled(self.sized, known)
        return made

    def function(self, program: Any) -> Callable[..., tuple[Any, Constants]]:
        """For the plan as the executor reads it, a function of the values: that with numbers for
        Sizes, and its constants.
        """
        known = self.sized.constants
        vectors = [one.symbols for one in known if isinstance(one, SizeVector)]
        places = [[self.symbols.index(symbol) for symbol in vector] for vector in vectors]
        tensors = tuple(one for one in known if not isinstance(one, SizeVector))
        fill = fill_function(self.symbols, program)

        def at(*values: int) -> tuple[Any, Constants]:
            taken = ([values[n] for n in vector] for vector in places)
            sizes = (torch.tensor(vector, dtype=torch.int64) for vector in taken)
            return fill(*values), (*tensors, *sizes)

        return at


def _filled(part: Any, known: dict[Expr, int]) -> Any:
    if isinstance(part, SizeVector):
        return torch.tensor([known[symbol] for symbol in part.symbols], dtype=torch.int64)
    if is_dataclass(part) and not isinstance(part, type):
        values = {one.name: getattr(part, one.name) for one in fields(part)}
        return replace(part, **{name: _filled(value, known) for name, value in values.items()})
    if isinstance(part, tuple):
        return tuple(_filled(item, known) for item in part)
    if isinstance(part, list):
        return [_filled(item, known) for item in part]
    if isinstance(part, dict):
        return {key: _filled(item, known) for key, item in part.items()}
    return value_of(part, known)
