"""Opcodes of local variables, cells and globals."""

from __future__ import annotations

from ...bytecode.instruction import LOCAL_TWIN, Instruction
from ...bytecode.versions import RUNNING
from ..state import Frame
from ..values.base import Machine, Value
from ..values.objects.functions import CellValue
from ..values.objects.namespaces import builtin_named
from .registry import opcode

__all__ = ["NO_NAME", "cell_contents", "global_named", "name_of", "unbound"]


def name_of(instruction: Instruction) -> str:
    """Return the name that the instruction refers to."""
    assert isinstance(instruction.arg, str)
    return instruction.arg


NO_NAME = "name '{}' is not defined"
_LOCAL = "cannot access local variable '{}' where it is not associated with a value"
_FREE = (
    "cannot access free variable '{}' where it is not associated with a value in enclosing scope"
)


def unbound(machine: Machine, name: str, text: str = _LOCAL) -> Exception:
    """Return the error for a name without a value, in CPython's words (3.11 and later)."""
    kind = UnboundLocalError if text is _LOCAL else NameError
    named = text.format(name.removesuffix(LOCAL_TWIN))
    # `exact`: programs and doctests compare these messages, which CPython writes, not the program.
    error: Exception = machine.error(kind, named, exact=True)
    return error


# LOAD_FAST may rely on the compiler's proof that the variable is bound, but a resume function
# starts after that proof: the check costs nothing here.
@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    name = name_of(instruction)
    if name not in frame.slots:
        raise unbound(machine, name)
    frame.push(frame.slots[name])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Save an outer variable around an inlined comprehension; an unbound one is a NULL."""
    frame.push(frame.slots.pop(name_of(instruction), None))


@opcode("STORE_FAST")
def store_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = frame.pop_raw()
    if value is None:  # restoring what LOAD_FAST_AND_CLEAR found unbound
        frame.slots.pop(name_of(instruction), None)
    else:
        frame.slots[name_of(instruction)] = value


@opcode("DELETE_FAST")
def delete_fast(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    if frame.slots.pop(name_of(instruction), None) is None:
        raise unbound(machine, name_of(instruction))


@opcode("MAKE_CELL")
def make_cell(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    name = name_of(instruction)
    # A parameter that an inner function captures moves into its cell: the slot now holds the cell.
    frame.slots[name] = CellValue(frame.slots.get(name))


def _cell(machine: Machine, frame: Frame, instruction: Instruction) -> CellValue:
    """Return the cell in a slot: the frame's own, or one that came as a plain argument."""
    cell = frame.slots[name_of(instruction)].realize(machine)
    assert isinstance(cell, CellValue)
    return cell


def _empty(machine: Machine, frame: Frame, name: str) -> Exception:
    own = name in frame.program.body.cellvars
    return unbound(machine, name, _LOCAL if own else _FREE)


@opcode("LOAD_DEREF")
def load_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(cell_contents(machine, frame, instruction))


def cell_contents(machine: Machine, frame: Frame, instruction: Instruction) -> Value:
    """Return the contents of the cell that the instruction names."""
    contents = _cell(machine, frame, instruction).load(machine)
    if contents is None:
        raise _empty(machine, frame, name_of(instruction))
    return contents


@opcode("STORE_DEREF")
def store_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    _cell(machine, frame, instruction).store(machine, frame.pop_lazy())


@opcode("DELETE_DEREF")
def delete_deref(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    cell = _cell(machine, frame, instruction)
    contents = cell.load(machine)
    if contents is None:
        raise _empty(machine, frame, name_of(instruction))
    contents.realize(machine)  # guards that it is not empty, which no later read would
    cell.store(machine, None)


@opcode("LOAD_GLOBAL")
def load_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    value = global_named(machine, frame, name_of(instruction))
    if instruction.flag and RUNNING.null_first:
        frame.push(None)
    frame.push(value)
    if instruction.flag and not RUNNING.null_first:
        frame.push(None)


def global_named(machine: Machine, frame: Frame, name: str) -> Value:
    """Return a global of the frame, or a builtin."""
    found = frame.globals.store.get(name)
    if found is None:
        # The store has guarded that the globals lack it: a later global shadows the builtin.
        found = builtin_named(machine, frame.globals, name)
    if found is None:
        raise unbound(machine, name, NO_NAME)
    value: Value = found
    return value


@opcode("STORE_GLOBAL")
def store_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.globals.set_item(machine, machine.constant(name_of(instruction)), frame.pop_lazy())


@opcode("DELETE_GLOBAL")
def delete_global(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    found = frame.globals.store.get(name_of(instruction))
    if found is None:
        raise unbound(machine, name_of(instruction), NO_NAME)
    found.realize(machine)  # guards that it exists, which no later read would
    frame.globals.del_item(machine, machine.constant(name_of(instruction)))


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    # A constant although it is a builtin: this opcode ignores a rebinding of the name.
    frame.push(machine.constant(AssertionError))
