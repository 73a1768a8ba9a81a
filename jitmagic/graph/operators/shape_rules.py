"""Holds the table of shape rules, a row for each overload, and the decorator that adds rows.

A rule stands in the module of its family. It takes the arguments of a call, as meta tensors, and
returns the results, or None for unusual arguments: torch's meta function decides then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...errors import VerifyError
from ...late_tables import LateTable
from ...lazy_dataclass import dataclass
from ...operators.operation import ALL, FLOATS, kind_of
from ...torch_types import AnyFunction, Kwargs, OpOverload

__all__ = ["SHAPE_RULES", "ShapeRule", "infers"]


@dataclass(frozen=True, slots=True)
class ShapeRule:
    """A rule, with the conditions under which it is asked.

    run: returns the results
    accepts: kinds of numbers that eager's kernel is known to take in all tensors, without a factor
        `alpha`; ALL if the rule checks dtypes or the kernel takes all
    other: the position of a tensor with another dtype (an index, a mask), and that dtype
    by_strides: whether the layout holds only if all strides are significant
    in_place: whether the rule also holds for the form that writes to its first argument
    """

    run: AnyFunction
    accepts: frozenset[str] = FLOATS
    other: tuple[int, torch.dtype] | None = None
    by_strides: bool = True
    in_place: bool = False

    def accepts_dtypes(self, tensors: list[torch.Tensor], kwargs: Kwargs) -> bool:
        """Return whether eager certainly accepts the dtypes of these tensors."""
        if self.accepts == ALL:
            return True
        if self.other is not None:
            position, dtype = self.other
            if len(tensors) <= position or tensors[position].dtype is not dtype:
                return False
            tensors = tensors[:position] + tensors[position + 1 :]
        accepts = FLOATS if "alpha" in kwargs else self.accepts
        return all(t.is_meta and kind_of(t.dtype) in accepts for t in tensors)


Rule = TypeVar("Rule", bound=AnyFunction)
SHAPE_RULES: LateTable[OpOverload, ShapeRule] = LateTable("shape rules")


def infers(*ops: OpOverload, **facts: Any) -> Callable[[Rule], Rule]:
    """Register the rule of these overloads; `facts` are the fields of ShapeRule."""

    def register(rule: Rule) -> Rule:
        row = ShapeRule(rule, **facts)
        for op in ops:
            if SHAPE_RULES.setdefault(op, row) is not row:
                raise VerifyError(f"there are two shape rules of {op}")
        return rule

    return register
