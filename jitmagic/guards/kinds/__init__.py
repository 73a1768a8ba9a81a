"""One row per kind of guard, grouped into files by subject.

A row is a class that lowers, checks and words one kind (row.py). The sentence that a user reads
when a guard fails is made by the row's `differs` or `value_differs`. A new kind needs a record in
guard.py, a row here and, if none of the native steps fits, an opcode in
extensions/frame/guard_steps.h.
"""

from . import containers, names, objects, process, tensors
from .row import KINDS, Registers, Step

__all__ = ["KINDS", "Registers", "Step"]

_FAMILIES = (containers, names, objects, process, tensors)
