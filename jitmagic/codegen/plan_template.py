"""PlanTemplate holds the plans of one graph for all sizes.

In: the plan of a schedule whose buffers have Sizes. Out: a Plan for given sizes, for diagnostics;
the executable is instantiated natively (`runtime.native.executable_template`). Order, fusion,
kernels and memory reuse are fixed; shapes, arguments of ATen calls and pool offsets are filled in.
Instantiating it generates and compiles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from ..symbols.expr import Expr
from ..symbols.size import value_of
from ..symbols.symbolic_numbers import Symbol
from .plan import Plan, SizeVector

__all__ = ["PlanTemplate"]


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """Holds a plan with symbolic sizes; `symbols` gives the order of the values."""

    sized: Plan
    symbols: tuple[Symbol, ...]

    # For diagnostics only: a call instantiates the plan natively, which takes 26 us for a new size
    # of an MLP; in Python it took 85.
    def plan(self, values: tuple[int, ...]) -> Plan:
        """Return the plan for these values of the symbols."""
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
