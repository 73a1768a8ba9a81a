"""PlanTemplate: the plans of one graph for all sizes.

In: the plan of a schedule whose buffers have Sizes. Out: a Plan to look at for each vector of
values; what runs is made of the sized plan natively (`runtime.native.executable_template`). Order,
fusion, kernels and what shares memory are fixed; shapes, arguments of ATen calls and places in the
pool are filled in. No text is written and nothing is compiled for a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from ..symbols.expr import Expr
from ..symbols.scalar import Symbol
from ..symbols.size import value_of
from .plan import Plan, SizeVector

__all__ = ["PlanTemplate"]


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
