"""Opcodes that build, extend and unpack containers, strings and slices.

LIST_APPEND and similar opcodes of a comprehension usually extend a list that the frame has made. In
a resume function, after a break inside the comprehension, that list is an argument.
"""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ..builtins.python.set_methods import operand_of
from ..builtins.python.texts import formatted
from ..residual_calls import joined
from ..state import Frame
from ..values.base import Machine, Value
from ..values.containers.dict_objects import mapping_pairs
from ..values.containers.mappings import DictValue
from ..values.containers.sequences import ListValue, SliceValue, TupleValue
from ..values.containers.sets import SetValue
from ..values.containers.text_inputs import joined_text
from ..values.objects.constants import fold
from ..values.objects.operators import unpack
from .registry import opcode

__all__: list[str] = []


def _count(instruction: Instruction) -> int:
    assert isinstance(instruction.arg, int)
    return instruction.arg


@opcode("BUILD_TUPLE")
def build_tuple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(TupleValue(frame.pop_many(_count(instruction))))


@opcode("BUILD_LIST")
def build_list(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(ListValue(frame.pop_many(_count(instruction))))


@opcode("BUILD_SET")
def build_set(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(SetValue.of(machine, frame.pop_many(_count(instruction))))


@opcode("BUILD_MAP")
def build_map(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    flat = frame.pop_many(2 * _count(instruction))
    frame.push(DictValue.of(machine, zip(flat[::2], flat[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    keys = frame.pop(machine)
    assert isinstance(keys, TupleValue)
    values = frame.pop_many(_count(instruction))
    frame.push(DictValue.of(machine, zip(keys.items, values, strict=True)))


@opcode("BUILD_SLICE")
def build_slice(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(_count(instruction))
    # Two or three parts: the step is None if it is not written.
    frame.push(SliceValue([*parts, machine.constant(None)][:3]))


@opcode("BUILD_STRING")
def build_string(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    pieces = frame.pop_many(_count(instruction))
    if (text := joined_text(machine, pieces)) is not None:
        frame.push(text)
        return
    frame.push(fold(machine, joined, *(piece.realize(machine) for piece in pieces)))


@opcode("LIST_APPEND")
def list_append(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    item = frame.pop_lazy()
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, ListValue)
    target.append(machine, item)


@opcode("SET_ADD")
def set_add(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    item = frame.pop(machine)
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, SetValue)
    target.add(machine, item)


@opcode("MAP_ADD")
def map_add(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    key, value = frame.pop_many(2)
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, DictValue)
    target.set_item(machine, key, value)


@opcode("LIST_EXTEND")
def list_extend(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop_lazy()
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, ListValue)
    target.extend(machine, items)


@opcode("SET_UPDATE")
def set_update(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    operand = operand_of(machine, frame.pop(machine))
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, SetValue)
    target.change(machine, "update", operand)


@opcode("DICT_UPDATE", "DICT_MERGE")
def dict_update(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Execute `{**x}` and `f(**x)`; only the latter rejects repeated keys."""
    source = frame.pop(machine)
    target = frame.peek(_count(instruction), machine)
    assert isinstance(target, DictValue)
    pairs = mapping_pairs(machine, source)
    if pairs is None:
        source.refuse(machine, "** unpacking")
    for key, value in pairs:
        # DICT_MERGE is `f(**x)`, where a repeated key is an error.
        if instruction.op == "DICT_MERGE" and target.find(machine, key) is not None:
            name = key.realize(machine).as_constant(machine)
            message = f"got multiple values for keyword argument '{name}'"
            raise machine.error(TypeError, message)
        target.put(machine, key, value)
    target.changed(machine)


@opcode("LIST_TO_TUPLE", until=(3, 11))
def list_to_tuple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    items = frame.pop(machine)
    assert isinstance(items, ListValue)
    # `(*a, b)` is built as a list first; 3.12 made the conversion an intrinsic.
    frame.push(TupleValue(items.items))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    items = unpack(machine, frame.pop(machine))
    wanted = _count(instruction)
    if len(items) > wanted:
        # CPython stops at the first superfluous item and so does not say how many there are.
        message = f"too many values to unpack (expected {wanted})"
        raise machine.error(ValueError, message)
    if len(items) < wanted:
        message = f"not enough values to unpack (expected {wanted}, got {len(items)})"
        raise machine.error(ValueError, message)
    for item in reversed(items):
        frame.push(item)


@opcode("UNPACK_EX")
def unpack_ex(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Execute `a, *b, c = x`; the argument has the counts before (low byte) and after the star."""
    before, after = _count(instruction) & 255, _count(instruction) >> 8
    items = unpack(machine, frame.pop(machine))
    if len(items) < before + after:
        expected = f"expected at least {before + after}, got {len(items)}"
        raise machine.error(ValueError, f"not enough values to unpack ({expected})")
    end = len(items) - after
    parts = [*items[:before], ListValue(items[before:end]), *items[end:]]
    for part in reversed(parts):
        frame.push(part)


@opcode("FORMAT_VALUE", until=(3, 12))
def format_value(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    flags = _count(instruction)
    spec = frame.pop(machine) if flags & 4 else None
    # 3.13 split FORMAT_VALUE into three opcodes, of which only CONVERT_VALUE has this number.
    conversion = ("", "s", "r", "a")[flags & 3]
    frame.push(_formatted(machine, frame.pop_lazy(), conversion, spec))


def _formatted(machine: Machine, value: Value, conversion: str, spec: Value | None) -> Value:
    """Return the text of a replacement field; a str of the call needs no conversion."""
    plain = conversion in ("", "s") and spec is None
    text = joined_text(machine, (value,)) if plain else None
    return text or formatted(machine, value.realize(machine), conversion, spec)


@opcode("CONVERT_VALUE", since=(3, 13))
def convert_value(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    conversion = ("", "s", "r", "a")[_count(instruction)]
    frame.push(_formatted(machine, frame.pop_lazy(), conversion, None))


@opcode("FORMAT_SIMPLE", since=(3, 13))
def format_simple(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(_formatted(machine, frame.pop_lazy(), "", None))


@opcode("FORMAT_WITH_SPEC", since=(3, 13))
def format_with_spec(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    spec = frame.pop(machine)
    frame.push(formatted(machine, frame.pop(machine), "", spec))
