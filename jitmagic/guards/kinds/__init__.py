"""One row per kind of guard (row.py), grouped into files by subject.

A new kind needs a record in guard.py, a row here and, if none of the native steps fits, an opcode
in extensions/frame/guard_program.cpp.
"""

from . import containers, names, objects, process, tensors
from .row import KINDS, Registers, Step

__all__ = ["KINDS", "Registers", "Step"]

_FAMILIES = (containers, names, objects, process, tensors)
