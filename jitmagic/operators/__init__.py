"""Describes operators by rows, which every stage asks instead of keeping lists of names.

scalar        the row of a scalar operation, and the table of them
arithmetic, elementary, predicates   the rows by family
"""

from . import arithmetic, elementary, predicates
from .scalar import SCALARS, ScalarOperation

__all__ = ["SCALARS", "ScalarOperation", "arithmetic", "elementary", "predicates"]
