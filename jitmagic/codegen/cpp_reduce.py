"""Writes reductions as C++ text: accumulators, their updates, the combination of lanes and parts.

In: a Reduction and whether it runs over lanes. Out: the declaration, the update statement, the
final expression. A sum of 16-bit floats accumulates in the dtype of the Reduction; max and min
propagate NaN.
"""

from __future__ import annotations

import torch

from ..lazy_dataclass import dataclass
from ..loops.ir import Reduction
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS
from .cpp_text import CTYPES, literal

__all__ = ["LANES", "POSITIONAL", "Accumulator", "lanes_of_product"]

LANES = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin"}
POSITIONAL = ("argmax", "argmin")
_PRODUCT_BYTES = 32  # register width in ATen's kernel, which torch builds for AVX2 at most


def lanes_of_product(node: Reduction) -> int:
    """Return the number of lanes with which ATen multiplies: the order of factors decides whether a
    partial product overflows or underflows. 0 for other reductions and dtypes.
    """
    if node.op != "prod" or node.dtype not in (torch.float32, torch.float64):
        return 0
    return _PRODUCT_BYTES // node.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Writes the text of one reduction; `width` 1 is a scalar accumulator. `total`: a jm::Total
    adds the blocks of a long float sum. `single`: a run-time test for a sum of one block, which
    makes it a jm::Blocks. `wide`: the sum of a whole float32 tensor, whose blocks and lanes are
    added in float64.
    """

    node: Reduction
    name: str
    width: int
    total: bool = False
    single: str = ""
    wide: bool = False
    ordered: int = 0

    @property
    def adds_floats(self) -> bool:
        """Return whether the order and number of additions affect the rounding."""
        return self.node.op == "sum" and self.dtype in (torch.float32, torch.float64)

    @property
    def positional(self) -> bool:
        """Return whether it is an argmax or argmin, which carry a position next to the value."""
        return self.node.op in POSITIONAL

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the accumulator."""
        return self.node.value.dtype if self.positional else self.node.dtype

    @property
    def scalar_type(self) -> str:
        """Return the C++ type of one combined result."""
        if self.positional:
            return f"jm::Best<{CTYPES[self.dtype]}, {self._greatest}>"
        return CTYPES[self.dtype]

    @property
    def _greatest(self) -> str:
        return "true" if self.node.op == "argmax" else "false"

    @property
    def neutral(self) -> str:
        """Return the identity of the operation."""
        match self.node.op:
            case "sum" | "any":
                return literal(0, self.dtype)
            case "prod" | "all":
                return literal(1, self.dtype)
            case "max":
                return f"jm::Limits<{CTYPES[self.dtype]}>::least"
        return f"jm::Limits<{CTYPES[self.dtype]}>::most"

    def declare(self) -> str:
        """Return the declaration of the empty accumulator."""
        if self.positional and self.width > 1:
            return (
                f"jm::BestLanes<{CTYPES[self.dtype]}, {self.width}, {self._greatest}> {self.name};"
            )
        if self.positional:
            return f"{self.scalar_type} {self.name};"
        if self.ordered:
            sizes = f"{self.width}, {self.ordered}"
            return f"jm::Product<{CTYPES[self.dtype]}, {sizes}> {self.name};"
        kind = f"V{self.width}<{self.scalar_type}>" if self.width > 1 else self.scalar_type
        if self.total and self.single:
            return f"jm::{'WideBlocks' if self.wide else 'Blocks'}<{kind}> {self.name};"
        if self.total:
            return f"jm::{'WideTotal' if self.wide else 'Total'}<{kind}> {self.name};"
        if self.width > 1:
            return f"{kind} {self.name}({self.neutral});"
        return f"{self.scalar_type} {self.name} = {self.neutral};"

    def update(self, value: str, position: str, across: bool) -> str:
        """Accumulate one value (a block of them); `across`: mask out the lanes past the end."""
        if self.positional:
            count = ", n" if self.width > 1 else ""
            return f"{self.name}.take({value}, {position}{count});"
        if self.ordered:
            return f"{self.name}.take({value}, n);"
        if across:
            value = f"jm::only({value}, {self.neutral}, n)"
        return f"{self.name} = {self._joined(self.name, value)};"

    def _joined(self, a: str, b: str) -> str:
        if self.dtype in (torch.float32, torch.float64) and self.node.op in ("sum", "prod"):
            return f"{a} {'+' if self.node.op == 'sum' else '*'} ({b})"
        if self.dtype == torch.bool:
            both = identity(self.node.op, torch.bool)
            return f"jm::bitwise_{'and' if both else 'or'}({a}, {b})"
        return f"jm::{REDUCTIONS[self.node.op]}({a}, {b})"

    @property
    def combined(self) -> str:
        """Return the accumulated values, lane by lane."""
        if self.total and self.wide and self.width > 1:
            return f"jm::convert<float>({self._sum})"
        return self._sum

    @property
    def _sum(self) -> str:
        return f"{self.name}.result({self.single})" if self.total else self.name

    def across_lanes(self) -> str:
        """Return all lanes combined into one value."""
        if self.positional:
            return f"{self.name}.best()"
        if self.ordered:
            return f"{self.name}.result()"
        if self.dtype == torch.bool:
            both = identity(self.node.op, torch.bool)
            return f"jm::{'all' if both else 'any'}({self.name})"
        if self.wide:
            return f"float(jm::hsum(jm::convert<double>({self._sum})))"
        return f"jm::{LANES[self.node.op]}({self.combined})"

    def join_part(self, part: str) -> str:
        """Combine with the result of another part of the loop, in order."""
        if self.positional:
            return f"{self.name}.take({part});"
        if self.total:
            return f"{self.name}.add({part});"
        return f"{self.name} = {self._joined(self.name, part)};"

    def result(self, combined: str) -> str:
        """Return the reduction's value from the combined accumulator."""
        return f"{combined}.at" if self.positional else combined
