"""Opcodes of attributes and subscripts."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ...bytecode.versions import RUNNING
from ..state import Frame
from ..values.base import Machine, Value
from ..values.containers.sequences import SliceValue
from ..values.objects.class_facts import load_attribute
from .registry import opcode

__all__: list[str] = []


# 3.11 and 3.12 expect the NULL of CALL below the callable, 3.13 above it: `RUNNING.null_first`.
def _push_callable(frame: Frame, value: Value) -> None:
    """Push a bound attribute and a NULL, where CPython may push (method, self); CALL takes both."""
    if RUNNING.null_first:
        frame.push(None)
        frame.push(value)
    else:
        frame.push(value)
        frame.push(None)


@opcode("LOAD_ATTR")
def load_attr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    owner = frame.pop(machine)
    value = load_attribute(machine, owner, str(instruction.arg))
    if instruction.flag:
        _push_callable(frame, value)
    else:
        frame.push(value)


# 3.12 merged it into LOAD_ATTR, whose lowest argument bit (`flag`) asks for the method form.
@opcode("LOAD_METHOD", until=(3, 11))
def load_method(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    owner = frame.pop(machine)
    _push_callable(frame, load_attribute(machine, owner, str(instruction.arg)))


@opcode("LOAD_SUPER_ATTR", since=(3, 12))
def load_super_attr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Load `super().name`; the stack holds super, the class and the object."""
    # The compiler emits it wherever the source says `super().x`. If the program has rebound
    # `super`, CPython calls that object, so the callable on the stack is called here too.
    builtin, start, obj = (value.realize(machine) for value in frame.pop_many(3))
    arguments = [start, obj] if instruction.explicit else []
    found = builtin.call(machine, arguments, {}).realize(machine)
    value = found.get_attr(machine, str(instruction.arg))
    if instruction.flag:
        _push_callable(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    owner = frame.pop(machine)
    # Lazy: a value that is only stored needs no guard. It is realized when something reads it.
    owner.set_attr(machine, str(instruction.arg), frame.pop_lazy())


@opcode("DELETE_ATTR")
def delete_attr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.pop(machine).del_attr(machine, str(instruction.arg))


@opcode("BINARY_SUBSCR")
def binary_subscr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    key = frame.pop_lazy()
    # The container decides whether the key must be guarded: a varying index may stay symbolic.
    frame.push(frame.pop(machine).get_item_lazily(machine, key))


@opcode("STORE_SUBSCR")
def store_subscr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    owner, key = frame.pop_pair(machine)
    owner.set_item(machine, key, frame.pop_lazy())


@opcode("DELETE_SUBSCR")
def delete_subscr(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    owner, key = frame.pop_pair(machine)
    owner.del_item(machine, key)


@opcode("BINARY_SLICE", since=(3, 12))
def binary_slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    bounds = frame.pop_many(2)
    frame.push(frame.pop(machine).get_item(machine, _slice(machine, bounds)))


@opcode("STORE_SLICE", since=(3, 12))
def store_slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    bounds = frame.pop_many(2)
    owner = frame.pop(machine)
    owner.set_item(machine, _slice(machine, bounds), frame.pop_lazy())


def _slice(machine: Machine, bounds: list[Value]) -> SliceValue:
    # These opcodes exist for slices without a step only.
    return SliceValue([*bounds, machine.constant(None)])
