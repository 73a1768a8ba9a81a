"""Writes reductions in C++: accumulators, their updates, the combination of lanes and parts.

In: a Total and the texts of values. Out: the declaration, the update statement, the final
expression. A sum of 16-bit floats accumulates in the dtype of the reduction; max and min propagate
NaN.
"""

from __future__ import annotations

import math

import torch

from ...lazy_dataclass import dataclass
from ...loops.values import identity
from ...operators.scalar import REDUCTIONS
from ..kernel import Total
from ..vector_lanes import lanes_of_product
from .text import CTYPES, literal

__all__ = ["Accumulator"]

_ACROSS = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin"}


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Writes the text of one accumulator. `single`: the test for a sum of one block, if there is
    one.
    """

    total: Total
    single: str = ""

    @property
    def name(self) -> str:
        return self.total.var.name

    @property
    def dtype(self) -> torch.dtype:
        return self.total.var.dtype

    @property
    def is_position(self) -> bool:
        """Return whether it is an argmax or argmin, which carry a position next to the value."""
        return self.total.at is not None

    @property
    def adds_blocks(self) -> bool:
        return self.total.method == "blocks"

    @property
    def scalar_type(self) -> str:
        """Return the C++ type of one combined result."""
        if self.is_position:
            return f"jm::Best<{CTYPES[self.dtype]}, {self._greatest}>"
        return CTYPES[self.dtype]

    @property
    def _greatest(self) -> str:
        return "true" if self.total.op == "argmax" else "false"

    @property
    def neutral(self) -> str:
        """Return the identity of the operation."""
        match self.total.op:
            case "sum" | "any":
                return literal(0, self.dtype)
            case "prod" | "all":
                return literal(1, self.dtype)
            case "logsumexp":
                return literal(-math.inf, self.dtype)
            case "max":
                return f"jm::Limits<{CTYPES[self.dtype]}>::least"
        return f"jm::Limits<{CTYPES[self.dtype]}>::most"

    def declare(self) -> str:
        """Return the declaration of the empty accumulator."""
        ctype, lanes = CTYPES[self.dtype], self.total.var.lanes
        if self.is_position and lanes > 1:
            return f"jm::BestLanes<{ctype}, {lanes}, {self._greatest}> {self.name};"
        if self.is_position:
            return f"{self.scalar_type} {self.name};"
        if self.total.method == "ordered":
            order = lanes_of_product(self.total.op, self.dtype)
            return f"jm::Product<{ctype}, {lanes}, {order}> {self.name};"
        kind = f"V{lanes}<{ctype}>" if lanes > 1 else ctype
        if self.adds_blocks:
            name = "Blocks" if self.single else "Total"
            return f"jm::{'Wide' if self.total.wide else ''}{name}<{kind}> {self.name};"
        if lanes > 1:
            return f"{kind} {self.name}({self.neutral});"
        return f"{ctype} {self.name} = {self.neutral};"

    def update(self, value: str, position: str, across: bool) -> str:
        """Accumulate one value (a block of them); `across`: mask out the lanes past the end."""
        if self.is_position:
            count = ", n" if self.total.var.lanes > 1 else ""
            return f"{self.name}.take({value}, {position}{count});"
        if self.total.method == "ordered":
            return f"{self.name}.take({value}, n);"
        if across:
            value = f"jm::only({value}, {self.neutral}, n)"
        return f"{self.name} = {self._joined(self.name, value)};"

    def _joined(self, a: str, b: str) -> str:
        if self.dtype in (torch.float32, torch.float64) and self.total.op in ("sum", "prod"):
            return f"{a} {'+' if self.total.op == 'sum' else '*'} ({b})"
        if self.dtype == torch.bool:
            both = identity(self.total.op, torch.bool)
            return f"jm::bitwise_{'and' if both else 'or'}({a}, {b})"
        if self.total.method == "scan" and self.total.op in ("max", "min"):
            return f"jm::running_{self.total.op}({a}, {b})"
        return f"jm::{REDUCTIONS[self.total.op]}({a}, {b})"

    def result(self, across: bool) -> str:
        """Return the value of the reduction; `across`: all lanes are combined."""
        combined = self.partial(across)
        return f"{combined}.at" if self.is_position else combined

    def partial(self, across: bool) -> str:
        """Return what is accumulated, to be joined with other parts."""
        is_wide = self.adds_blocks and self.total.wide and self.total.var.lanes > 1
        if not across:
            return f"jm::convert<float>({self._sum})" if is_wide else self._sum
        if self.is_position:
            return f"{self.name}.best()"
        if self.total.method == "ordered":
            return f"{self.name}.result()"
        if self.dtype == torch.bool:
            both = identity(self.total.op, torch.bool)
            return f"jm::{'all' if both else 'any'}({self.name})"
        if self.total.wide:
            return f"float(jm::hsum(jm::convert<double>({self._sum})))"
        return f"jm::{_ACROSS[self.total.op]}({self._sum})"

    @property
    def _sum(self) -> str:
        return f"{self.name}.result({self.single})" if self.adds_blocks else self.name

    def join_part(self, part: str) -> str:
        """Combine with the result of another part of the loop, in order."""
        if self.is_position:
            return f"{self.name}.take({part});"
        if self.adds_blocks:
            return f"{self.name}.add({part});"
        return f"{self.name} = {self._joined(self.name, part)};"
