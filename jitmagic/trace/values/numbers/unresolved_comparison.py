"""Models a comparison of unbacked numbers (read from tensors) that their ranges do not decide.

Input: two numbers and an operator. Output: a bool whose value only the graph knows, like a SymBool.
It can be passed to torch._check or returned; a branch on it specialises the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from torch.fx import Node

from ....symbols.context import COMPARISONS, Specialize
from ....symbols.expr import Expr
from ....symbols.scalar import symbols_of
from ...result import Recipe
from ..base import Builder, Machine, Value
from .validation import asserted_truth

__all__ = ["UnresolvedComparison"]


class UnresolvedComparison(Value):
    """The bool `left op right`; `record` adds the comparison to the graph."""

    __slots__ = ("_record", "exprs", "op", "operands")
    varies = True

    def __init__(
        self,
        op: str,
        operands: tuple[Value, Value],
        exprs: tuple[Expr, Expr],
        record: Callable[[], Node],
    ) -> None:
        super().__init__()
        self.op, self.operands, self.exprs, self._record = op, operands, exprs, record

    def python_type(self, machine: Machine) -> type:
        return bool

    def node(self) -> Node:
        return self._record()

    def is_constant(self, machine: Machine) -> bool:
        """Return True: `as_constant` may restart the trace with a constant (Specialize)."""
        return True

    def as_constant(self, machine: Machine) -> bool:
        return self.truth(machine)

    def truth(self, machine: Machine) -> bool:
        """Return the answer of a branch on it; if one side only raises, assert the other."""
        symbols = machine.symbols
        if not symbols.has_hints(self.exprs) and symbols.known(self.op, *self.exprs) is None:
            answer = asserted_truth(machine, self.node())
            if answer is not None:
                return answer
        decided: bool = symbols.decide(self.op, *self.exprs)
        return decided

    def hash_key(self, machine: Machine) -> object:
        self.refuse(machine, "hash()")

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        left, right = self.exprs
        raise Specialize({*symbols_of(left), *symbols_of(right)}, f"{what} of {self.describe()}")

    def recipe(self, builder: Builder) -> Recipe:
        left, right = self.operands
        return builder.invoke(COMPARISONS[self.op], (builder(left), builder(right)))

    def parts(self) -> Iterable[Value]:
        return self.operands

    def describe(self) -> str:
        return "a comparison of numbers that vary"
