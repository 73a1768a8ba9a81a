"""The table of opcode handlers, with the Python versions each is for.

    @opcode("LOAD_FAST")                          def load_fast(machine, frame, instruction) -> None
    @opcode("KW_NAMES", until=(3, 12))            only up to and including 3.12

A handler executes one instruction symbolically: it changes the frame's stack and slots and may call
`frame.jump`. It returns None to continue with the next instruction, `Returned(value)` or
`Yielded(value)`. Opcodes in `UNSUPPORTED` are graph breaks with the reason given there; a test
checks that every other opcode of each Python version has a handler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from ...bytecode.instruction import Instruction
from ...late_tables import LateTable
from ...lazy_dataclass import dataclass
from ..breaks import GraphBreak, UnsupportedOpcode
from ..state import Frame, Interpreter, Signal

__all__ = [
    "UNSUPPORTED",
    "OpcodeHandler",
    "handler_for",
    "handlers_of_version",
    "opcode",
]


OpcodeHandler = Callable[[Interpreter, Frame, Instruction], Signal]
_H = TypeVar("_H", bound=OpcodeHandler)
_Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    since: _Version
    until: _Version
    handler: OpcodeHandler


_TABLE: LateTable[str, list[_Entry]] = LateTable("opcodes")

# A tagged coroutine is refused at tag time (frame/tag.py): these are for callees.
_ASYNC = "coroutines and async generators are not traced"
_TEMPLATE = "template strings are not traced"
UNSUPPORTED: Mapping[str, str] = {
    "ASYNC_GEN_WRAP": _ASYNC,
    "BEFORE_ASYNC_WITH": _ASYNC,
    "END_ASYNC_FOR": _ASYNC,
    "GET_AITER": _ASYNC,
    "GET_ANEXT": _ASYNC,
    "GET_AWAITABLE": _ASYNC,
    "CLEANUP_THROW": "exceptions thrown into a generator",
    "LOAD_SPECIAL": _ASYNC,  # `with` is decoded as BEFORE_WITH, `async with` is not
    "BUILD_INTERPOLATION": _TEMPLATE,
    "BUILD_TEMPLATE": _TEMPLATE,
    "CHECK_EG_MATCH": "exception groups are not modelled",
    "PREP_RERAISE_STAR": "exception groups are not modelled",
    "LOAD_FROM_DICT_OR_GLOBALS": "annotations and type parameters of classes are not traced",
    "IMPORT_STAR": "only legal at module level",
    "PRINT_EXPR": "only emitted by the interactive prompt",
    "INTERPRETER_EXIT": "not part of user code",
    "ENTER_EXECUTOR": "not part of user code",
    "EXIT_INIT_CHECK": "not part of user code",
    "RESERVED": "not an instruction",
}


def opcode(*names: str, since: _Version = (3, 11), until: _Version = (3, 99)) -> Callable[[_H], _H]:
    """Register a handler for these opcodes of these versions (both ends included)."""

    def register(handler: _H) -> _H:
        for name in names:
            _TABLE.setdefault(name, []).append(_Entry(since, until, handler))
        return handler

    return register


def handlers_of_version(version: _Version) -> dict[str, OpcodeHandler]:
    """Return the handlers for one Python version by opcode name."""
    _TABLE.load_all()
    return {
        name: entry.handler
        for name, entries in _TABLE.items()
        for entry in entries
        if entry.since <= version <= entry.until
    }


@cache
def _running(name: str) -> OpcodeHandler | None:
    version = sys.version_info[:2]
    fit = (one.handler for one in _TABLE.get(name, ()) if one.since <= version <= one.until)
    return next(fit, None)


def handler_for(name: str) -> OpcodeHandler:
    """Return the handler of an opcode for the running Python; breaks if there is none."""
    handler = _running(name)
    if handler is None:
        why = UNSUPPORTED.get(name, "not known to this version of jitmagic")
        raise GraphBreak(UnsupportedOpcode.of(opcode=name, why=why))
    return handler
