"""Opcodes of class statements: the body is interpreted over a namespace in its frame.

The statement makes a ClassStatementValue (trace/values/objects/class_statements.py).
"""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine
from ..values.containers.mappings import DictValue
from ..values.objects.class_statements import ClassBodyNames
from .locals import NO_NAME, cell_contents, global_named, name_of, unbound
from .registry import opcode

__all__: list[str] = []


@opcode("LOAD_BUILD_CLASS")
def load_build_class(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # Programs may replace this builtin: it is looked up and guarded like any other name.
    frame.push(global_named(machine, frame, "__build_class__"))


@opcode("LOAD_NAME")
def load_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    name = name_of(instruction)
    known = frame.names.get(name)
    frame.push(global_named(machine, frame, name) if known is None else known)


@opcode("STORE_NAME")
def store_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # Names of a class body are never fast locals: CPython runs it over a mapping.
    frame.names[name_of(instruction)] = frame.pop_lazy()


@opcode("DELETE_NAME")
def delete_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    if frame.names.pop(name_of(instruction), None) is None:
        raise unbound(machine, name_of(instruction), NO_NAME)


# 3.12 splits it into LOAD_LOCALS and LOAD_FROM_DICT_OR_DEREF, below.
@opcode("LOAD_CLASSDEREF", until=(3, 11))
def load_classderef(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Load a variable of the enclosing function, unless the class has one of that name."""
    known = frame.names.get(name_of(instruction))
    frame.push(cell_contents(machine, frame, instruction) if known is None else known)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.names.setdefault("__annotations__", DictValue.of(machine, ()))


@opcode("LOAD_LOCALS", since=(3, 12))
def load_locals(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Push the class namespace for the LOAD_FROM_DICT_OR_DEREF that follows; other uses break."""
    frame.push(ClassBodyNames(dict(frame.names)))


@opcode("LOAD_FROM_DICT_OR_DEREF", since=(3, 12))
def load_from_dict_or_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    names = frame.pop(machine)
    assert isinstance(names, ClassBodyNames)
    known = names.table.get(name_of(instruction))
    frame.push(cell_contents(machine, frame, instruction) if known is None else known)
