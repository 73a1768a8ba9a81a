"""Holds what users have registered about operators, by the overload's name.

The stages ask these three registries before their own tables: rows of facts, as in operators/
(graph/operators), decompositions (autograd/recording) and lowerings (loops/registered.py). They are
filled by operators.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from ..compat.operators import OpOverload
from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction
from .registry import Registry

if TYPE_CHECKING:  # the rows of all operators are a tenth of the import of the stages
    from ..operators.operation import Operation

__all__ = [
    "DECOMPOSITIONS",
    "LOWERINGS",
    "OPERATORS",
    "Dims",
    "RegisteredDecomposition",
    "RegisteredLowering",
    "is_pure",
    "row_of",
]

T = TypeVar("T")
Dims = str | int | tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredDecomposition:
    """An operator as a function that calls other operators."""

    name: str
    run: AnyFunction


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredLowering:
    """An operator as a function of scalars. `over`: the dimensions that its reductions combine."""

    name: str
    run: AnyFunction
    over: Dims | None


OPERATORS: Registry[Operation] = Registry("operator")
DECOMPOSITIONS: Registry[RegisteredDecomposition] = Registry("decomposition")
LOWERINGS: Registry[RegisteredLowering] = Registry("lowering")


def row_of(rows: Mapping[str, T], op: object) -> T | None:
    """Return the row of an overload, or None."""
    return rows.get(str(op)) if rows and isinstance(op, OpOverload) else None


def is_pure(op: object) -> bool:
    """Return whether the operator was declared free of side effects, or has a formula."""
    row = row_of(OPERATORS.rows, op)
    if row is not None and row.is_pure:
        return True
    tables: tuple[Mapping[str, object], ...] = (DECOMPOSITIONS.rows, LOWERINGS.rows)
    return any(row_of(rows, op) is not None for rows in tables)
