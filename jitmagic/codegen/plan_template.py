"""PlanTemplate: the plans of one graph for all sizes.

In: a schedule whose buffers have Sizes, and what its kernels are called. Out: a Plan for each
vector of values: order, fusion and kernels are fixed; shapes, arguments of ATen calls and places in
the pool are worked out anew. No text is written and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..loops.sizes import with_sizes
from ..schedule.memory import plan_memory
from ..schedule.result import Schedule
from ..symbols.expr import Expr
from ..symbols.scalar import Symbol
from .build_plan import build_plan
from .plan import Plan

__all__ = ["PlanTemplate"]


@dataclass(frozen=True, slots=True)
class PlanTemplate:
    """`kernels` names the kernel of every nest, `sizes` the symbols that a nest's kernel takes."""

    schedule: Schedule
    kernels: Mapping[str, str]
    symbols: tuple[Symbol, ...]
    sizes: Mapping[str, tuple[Symbol, ...]]

    def plan(self, values: tuple[int, ...]) -> Plan:
        """The plan where the symbols have these values."""
        known: dict[Expr, int] = dict(zip(self.symbols, values, strict=True))
        taken = {nest: tuple(known[s] for s in symbols) for nest, symbols in self.sizes.items()}
        program = with_sizes(self.schedule.program, known)
        memory = plan_memory(program)
        filled = replace(
            self.schedule,
            program=program,
            pool=memory.pool,
            pool_bytes=memory.pool_bytes,
            last_use=memory.last_use,
        )
        return build_plan(filled, self.kernels, taken)
