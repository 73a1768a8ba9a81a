"""Opcodes of local variables, cells and globals."""

from __future__ import annotations

from typing import Any

from ...bytecode.instruction import LOCAL_TWIN, Instruction
from ...bytecode.versions import RUNNING
from ..state import Frame
from ..values.base import Value
from ..values.functions import CellValue
from .registry import opcode

__all__: list[str] = []


def _name(instruction: Instruction) -> str:
    assert isinstance(instruction.arg, str)
    return instruction.arg


def _unbound(machine: Any, name: str, kind: type[NameError] = UnboundLocalError) -> Exception:
    what = "cannot access local variable '{}' where it is not associated with a value"
    if kind is not UnboundLocalError:
        what = "name '{}' is not defined"
    error: Exception = machine.error(kind, what.format(name.removesuffix(LOCAL_TWIN)))
    return error


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(machine: Any, frame: Frame, instruction: Instruction) -> None:
    name = _name(instruction)
    if name not in frame.slots:
        raise _unbound(machine, name)
    frame.push(frame.slots[name])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(machine: Any, frame: Frame, instruction: Instruction) -> None:
    """Saves an outer variable around an inlined comprehension; an unbound one is a NULL."""
    frame.push(frame.slots.pop(_name(instruction), None))


@opcode("STORE_FAST")
def store_fast(machine: Any, frame: Frame, instruction: Instruction) -> None:
    value = frame.pop_raw()
    if value is None:  # restoring what LOAD_FAST_AND_CLEAR found unbound
        frame.slots.pop(_name(instruction), None)
    else:
        frame.slots[_name(instruction)] = value


@opcode("DELETE_FAST")
def delete_fast(machine: Any, frame: Frame, instruction: Instruction) -> None:
    if frame.slots.pop(_name(instruction), None) is None:
        raise _unbound(machine, _name(instruction))


@opcode("MAKE_CELL")
def make_cell(machine: Any, frame: Frame, instruction: Instruction) -> None:
    name = _name(instruction)
    frame.slots[name] = CellValue(frame.slots.get(name))


def _cell(machine: Any, frame: Frame, instruction: Instruction) -> CellValue:
    """The cell in a slot: the frame's own, or one that came as a plain argument."""
    cell = frame.slots[_name(instruction)].realize(machine)
    assert isinstance(cell, CellValue)
    return cell


def _empty(machine: Any, frame: Frame, name: str) -> Exception:
    own = name in frame.program.body.cellvars
    return _unbound(machine, name, UnboundLocalError if own else NameError)


@opcode("LOAD_DEREF")
def load_deref(machine: Any, frame: Frame, instruction: Instruction) -> None:
    contents = _cell(machine, frame, instruction).load(machine)
    if contents is None:
        raise _empty(machine, frame, _name(instruction))
    frame.push(contents)


@opcode("STORE_DEREF")
def store_deref(machine: Any, frame: Frame, instruction: Instruction) -> None:
    _cell(machine, frame, instruction).store(machine, frame.pop_lazy())


@opcode("DELETE_DEREF")
def delete_deref(machine: Any, frame: Frame, instruction: Instruction) -> None:
    cell = _cell(machine, frame, instruction)
    contents = cell.load(machine)
    if contents is None:
        raise _empty(machine, frame, _name(instruction))
    contents.realize(machine)  # the guard that it is not empty: nobody else looks at it
    cell.store(machine, None)


@opcode("LOAD_GLOBAL")
def load_global(machine: Any, frame: Frame, instruction: Instruction) -> None:
    value = _global(machine, frame, _name(instruction))
    if instruction.flag and RUNNING.null_first:
        frame.push(None)
    frame.push(value)
    if instruction.flag and not RUNNING.null_first:
        frame.push(None)


def _global(machine: Any, frame: Frame, name: str) -> Value:
    found = frame.globals.find(machine, name)
    if found is None:
        found = frame.globals.builtin(machine, name)
    if found is None:
        raise _unbound(machine, name, NameError)
    value: Value = found
    return value


@opcode("STORE_GLOBAL")
def store_global(machine: Any, frame: Frame, instruction: Instruction) -> None:
    frame.globals.store(machine, _name(instruction), frame.pop_lazy())


@opcode("DELETE_GLOBAL")
def delete_global(machine: Any, frame: Frame, instruction: Instruction) -> None:
    found = frame.globals.find(machine, _name(instruction))
    if found is None:
        raise _unbound(machine, _name(instruction), NameError)
    found.realize(machine)  # the guard that there is one: nobody else looks at it
    frame.globals.store(machine, _name(instruction), None)


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Any, frame: Frame, instruction: Instruction) -> None:
    frame.push(machine.constant(AssertionError))
