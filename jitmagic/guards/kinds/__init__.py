"""What is done with a guard of each kind: one row a kind (row.py), in files by what they are about.

A new kind is its record in guard.py, its row here, and, where none of the native steps fits, an
opcode in extensions/frame/guard_program.cpp.
"""

from . import containers, names, objects, process, tensors
from .row import KINDS, Registers, Step

__all__ = ["KINDS", "Registers", "Step"]

_FAMILIES = (containers, names, objects, process, tensors)
