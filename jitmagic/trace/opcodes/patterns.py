"""Opcodes of match statements.

They test the type of a subject and unpack it; the other tests of a pattern are plain comparisons
and calls.
"""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..breaks import GraphBreak, UnsupportedOperation
from ..state import Frame
from ..values.base import Machine, ObservedError, Value
from ..values.containers.mappings import DictValue
from ..values.containers.sequences import TupleValue
from ..values.objects.class_facts import has_flag, is_instance, load_attribute
from ..values.objects.classes import ClassValue
from .registry import opcode

__all__: list[str] = []

# Py_TPFLAGS_...: set by CPython for built-in types and by abc for classes that register there.
_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


@opcode("GET_LEN")
def get_len(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(machine.constant(frame.peek(1, machine).length(machine)))


@opcode("MATCH_SEQUENCE")
def match_sequence(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Push whether the subject's class is a sequence, by its flags (deques, abc.Sequence)."""
    kind = frame.peek(1, machine).python_type(machine)
    frame.push(machine.constant(has_flag(machine, kind, _SEQUENCE)))


@opcode("MATCH_MAPPING")
def match_mapping(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    kind = frame.peek(1, machine).python_type(machine)
    frame.push(machine.constant(has_flag(machine, kind, _MAPPING)))


@opcode("MATCH_KEYS")
def match_keys(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Push the values under the keys as a tuple, or None if one is missing; both operands stay."""
    keys, subject = frame.peek(1, machine), frame.peek(2, machine)
    if not isinstance(subject, DictValue) or not isinstance(keys, TupleValue):
        raise GraphBreak(
            UnsupportedOperation.of(what="a mapping pattern", types=subject.describe())
        )
    # CPython calls `get` of the mapping, which for an exact dict is a lookup without `__missing__`.
    found = [subject.find(machine, key) for key in keys.items]
    values = [value for value in found if value is not None]
    complete = len(values) == len(found)
    frame.push(TupleValue(values) if complete else machine.constant(None))


@opcode("MATCH_CLASS")
def match_class(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Match `case Kind(a, b, name=c)`: push the sub-patterns' subjects as a tuple, or None."""
    names = frame.pop(machine)
    kind = frame.pop(machine)
    subject = frame.pop(machine)
    if not isinstance(kind, ClassValue):
        raise GraphBreak(UnsupportedOperation.of(what="a class pattern", types=kind.describe()))
    assert isinstance(names, TupleValue)
    assert isinstance(instruction.arg, int)
    found: list[Value] | None = None
    if is_instance(machine, subject, kind.live):
        wanted = _positional(machine, subject, kind, instruction.arg)
        wanted += [str(name.as_constant(machine)) for name in names.realized(machine)]
        found = _with_attributes(machine, subject, wanted)
    frame.push(machine.constant(None) if found is None else TupleValue(found))


def _positional(
    machine: Machine, subject: Value, kind: ClassValue, count: int
) -> list[Value | str]:
    """Return the subjects of positional sub-patterns: the subject itself, or attribute names."""
    if not count:
        return []
    try:
        names = kind.get_attr(machine, "__match_args__").realize(machine)
    except ObservedError:
        names = TupleValue(())
        # `case int(n)`: for int, str and nine other types the only positional pattern is the
        # subject.
        if kind.live.__flags__ & _MATCH_SELF and count == 1:
            return [subject]
    if not isinstance(names, TupleValue) or len(names.items) < count:
        raise GraphBreak(UnsupportedOperation.of(what="a class pattern", types=kind.describe()))
    return [str(one.as_constant(machine)) for one in names.realized(machine)[:count]]


def _with_attributes(
    machine: Machine, subject: Value, wanted: list[Value | str]
) -> list[Value] | None:
    """Return the subjects of the sub-patterns in order; None: an attribute is missing."""
    names = [one for one in wanted if isinstance(one, str)]
    if len(set(names)) < len(names):
        subject.refuse(machine, "a class pattern that names an attribute twice")
    try:
        return [
            load_attribute(machine, subject, one) if isinstance(one, str) else one for one in wanted
        ]
    except ObservedError as observed:
        if not observed.error.matches(machine, AttributeError):
            raise
        return None
