"""Opcodes of calls, in the forms of each Python version."""

from __future__ import annotations

from ...bytecode.instruction import Instruction
from ...bytecode.versions import RUNNING
from ..state import Frame
from ..values.base import Machine, Value
from ..values.containers.mappings import DictValue
from ..values.objects.operators import unpack
from .registry import opcode

__all__: list[str] = []


@opcode("KW_NAMES", until=(3, 12))
def kw_names(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    assert isinstance(instruction.arg, tuple)
    # 3.11 and 3.12 keep the names in the frame between KW_NAMES and CALL; 3.13 pushes them for
    # CALL_KW.
    frame.keyword_names = instruction.arg


@opcode("CALL")
def call(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    names, frame.keyword_names = frame.keyword_names, ()
    assert isinstance(instruction.arg, int)
    _call(machine, frame, instruction.arg, names)


@opcode("CALL_KW", since=(3, 13))
def call_kw(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    names = frame.pop(machine).as_constant(machine)
    assert isinstance(instruction.arg, int)
    _call(machine, frame, instruction.arg, names)


def _call(machine: Machine, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    args = frame.pop_many(count)
    callee, extra = _pop_callee(frame)
    values = [*extra, *args]
    positional = values[: len(values) - len(names)]
    keywords = dict(zip(names, values[len(positional) :], strict=True))
    frame.push(callee.realize(machine).call(machine, positional, keywords))


def _pop_callee(frame: Frame) -> tuple[Value, list[Value]]:
    """Pop the callable, and the `self` that instructions like LOAD_METHOD push next to it."""
    upper, lower = frame.pop_raw(), frame.pop_raw()
    if not RUNNING.null_first:  # callable, self or NULL
        assert lower is not None
        return lower, [] if upper is None else [upper]
    assert upper is not None
    return (upper, []) if lower is None else (lower, [upper])  # NULL, callable or method, self


@opcode("CALL_FUNCTION_EX", until=(3, 13))
def call_function_ex(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    assert isinstance(instruction.arg, int)
    _call_unpacked(machine, frame, frame.pop(machine) if instruction.arg & 1 else None)


@opcode("CALL_FUNCTION_EX", since=(3, 14))
def call_function_ex_314(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    named = frame.pop_raw()  # or NULL
    _call_unpacked(machine, frame, None if named is None else named.realize(machine))


def _call_unpacked(machine: Machine, frame: Frame, named: Value | None) -> None:
    keywords: dict[str, Value] = {}
    if named is not None:
        # CPython accepts any mapping; another's `keys` may be user code, so its call is left to
        # Python.
        if not isinstance(named, DictValue):
            named.refuse(machine, "** in a call")
        keywords = named.as_names(machine)
    args = unpack(machine, frame.pop_lazy())
    callee, extra = _pop_callee(frame)
    # The compiler emits a NULL for this opcode: methods are bound before.
    assert not extra
    frame.push(callee.realize(machine).call(machine, args, keywords))
