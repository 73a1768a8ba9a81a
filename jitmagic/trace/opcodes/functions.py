"""Opcodes that make functions."""

from __future__ import annotations

from types import CodeType

from ...bytecode.instruction import Instruction
from ..state import Frame
from ..values.base import Machine, Value
from ..values.containers.mappings import DictValue
from ..values.containers.sequences import TupleValue
from ..values.objects.functions import FunctionValue
from .registry import opcode

__all__: list[str] = []

_DEFAULTS, _KWDEFAULTS, _ANNOTATIONS, _CLOSURE, _ANNOTATE = 1, 2, 4, 8, 16


def _new_function(machine: Machine, frame: Frame) -> FunctionValue:
    code = frame.pop(machine).as_constant(machine)
    assert isinstance(code, CodeType)
    return FunctionValue(code, frame.globals)


def _set_part(machine: Machine, function: FunctionValue, part: int, value: Value) -> None:
    if part == _DEFAULTS:
        # The tuple itself, unread: a default that no call uses needs no guard.
        function.defaults = value
    elif part == _KWDEFAULTS:
        function.kwdefaults = value
    elif part == _ANNOTATIONS:
        # A flat tuple since 3.10: CPython makes the dict when `__annotations__` is first read.
        pairs = value.realize(machine)  # (name, annotation, name, annotation, ...)
        assert isinstance(pairs, TupleValue)
        named = zip(pairs.items[::2], pairs.items[1::2], strict=True)
        function.annotations = DictValue.of(machine, named)
    elif part == _ANNOTATE:  # 3.14: the function that makes the annotations when they are read
        function.slots["__annotate__"] = value
    else:
        assert part == _CLOSURE
        cells = value.realize(machine)
        assert isinstance(cells, TupleValue)
        function.closure = tuple(cells.realized(machine))


@opcode("MAKE_FUNCTION", until=(3, 12))
def make_function(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Make a function of the code on top; bits of the argument say which parts are below it.

    They are defaults, keyword defaults, annotations and closure.
    """
    function = _new_function(machine, frame)
    assert isinstance(instruction.arg, int)
    # The compiler pushes them in the opposite order.
    for part in (_CLOSURE, _ANNOTATIONS, _KWDEFAULTS, _DEFAULTS):
        if instruction.arg & part:
            _set_part(machine, function, part, frame.pop_lazy())
    frame.push(function)


@opcode("MAKE_FUNCTION", since=(3, 13))
def make_function_313(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    frame.push(_new_function(machine, frame))


@opcode("SET_FUNCTION_ATTRIBUTE", since=(3, 13))
def set_function_attribute(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Set one part of a function; 3.13 moved the parts here from MAKE_FUNCTION."""
    function = frame.pop(machine)
    assert isinstance(function, FunctionValue)
    assert isinstance(instruction.arg, int)
    _set_part(machine, function, instruction.arg, frame.pop_lazy())
    frame.push(function)
