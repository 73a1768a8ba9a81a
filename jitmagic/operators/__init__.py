"""Describes operators by rows, which every stage asks instead of keeping lists of names.

operation     the row of a torch operation, and the table of them
elementwise, indexing, linear_algebra, network, random_numbers   its rows by family

scalar        the row of a scalar operation, and the table of them
arithmetic, draws, elementary, predicates   its rows by family
"""

from . import (
    arithmetic,
    draws,
    elementary,
    elementwise,
    indexing,
    linear_algebra,
    network,
    predicates,
    random_numbers,
)
from .operation import Operation, operation
from .scalar import SCALARS, ScalarOperation

__all__ = [
    "SCALARS",
    "Operation",
    "ScalarOperation",
    "arithmetic",
    "draws",
    "elementary",
    "elementwise",
    "indexing",
    "linear_algebra",
    "network",
    "operation",
    "predicates",
    "random_numbers",
]
