"""Decodes a code object into a Body.

Input: any `types.CodeType` of the running interpreter. Output: a fresh `Body` with symbolic
arguments, jumps and exception regions, without caches, prefixes, superinstructions, borrowed loads
and specialised opcodes. Invariant: `assemble(decode(code))` behaves like `code`, with the same
positions. Code that cannot be represented faithfully raises `BytecodeError`.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import BytecodeError
from .exceptions_table import parse_exception_table
from .instruction import LOCAL_TWIN, Body, ExceptionRegion, Instruction, Position
from .line_table import parse_line_table
from .versions import RUNNING, Kind

__all__ = ["decode", "instruction_count"]

_PARTS = {**RUNNING.superinstructions, **RUNNING.borrowed}


class _Raw(NamedTuple):
    """One encoded instruction in code units: its first prefix, its opcode, and its end."""

    start: int
    at: int
    end: int
    op: str
    argument: int


def decode(code: types.CodeType) -> Body:
    """Decode a code object; the result shares no mutable state with it and may be edited."""
    body = Body(
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags,
        varnames=_with_suffixes(code.co_varnames, code),
        cellvars=_with_suffixes(code.co_cellvars, code),
        freevars=list(code.co_freevars),
        consts=code.co_consts,
        names=code.co_names,
    )
    # co_code, because CPython undoes specialisation and instrumentation (sys.monitoring) in it.
    raws = _raw_instructions(code.co_code)
    positions = parse_line_table(code.co_linetable, code.co_firstlineno)
    decoder = _Decoder(code, body.slots(), positions)
    firsts: dict[int, Instruction] = {}
    lasts: dict[int, Instruction] = {}
    for raw in raws:
        singles = decoder.instructions(raw)
        firsts[raw.start], lasts[raw.end] = singles[0], singles[-1]
        body.instructions.extend(singles)
    for raw in raws:
        if RUNNING.kind(raw.op) is Kind.JUMP:
            firsts[raw.start].target = firsts[_jump_target(raw)]
    for entry in parse_exception_table(code.co_exceptiontable):
        start, end, target = firsts[entry.start], lasts[entry.end], firsts[entry.target]
        body.regions.append(ExceptionRegion(start, end, target, entry.depth, entry.lasti))
    return body


def instruction_count(code: types.CodeType) -> int:
    """Return how many instructions `decode` gives."""
    return sum(len(_PARTS.get(raw.op, ("",))) for raw in _raw_instructions(code.co_code))


def _with_suffixes(names: tuple[str, ...], code: types.CodeType) -> list[str]:
    """Return local names; a local that shares its name with a free variable gets LOCAL_TWIN."""
    free = set(code.co_freevars)
    return [name + LOCAL_TWIN if name in free else name for name in names]


def _raw_instructions(code: bytes) -> list[_Raw]:
    """Return the instructions; this version's expansions of a portable opcode are merged."""
    raws = list(_single_instructions(code))
    for op, parts in RUNNING.expansions.items():
        encoded = [(raw.op, raw.argument) for raw in raws]
        starts = [i for i, first in enumerate(encoded) if first == parts[0]]
        for start in reversed(starts):
            end = start + len(parts)
            if tuple(encoded[start:end]) == parts:
                # The last part calls: it is where a frame stays, and where errors are raised.
                raws[start:end] = [raws[end - 1]._replace(start=raws[start].start, op=op)]
    return raws


def _single_instructions(code: bytes) -> Iterator[_Raw]:
    """Yield instructions with prefixes folded in and caches skipped."""
    start = unit = argument = 0
    units = len(code) // 2
    while unit < units:
        op = dis.opname[code[2 * unit]]
        argument = argument << 8 | code[2 * unit + 1]
        if op != "EXTENDED_ARG":
            end = unit + 1 + RUNNING.caches.get(op, 0)
            yield _Raw(start, unit, end, op, argument)
            start, unit, argument = end, end, 0
        else:
            unit += 1


def _jump_target(raw: _Raw) -> int:
    """Return a jump's target; jumps count code units from their end, caches included."""
    return raw.end - raw.argument if "BACKWARD" in raw.op else raw.end + raw.argument


class _Decoder:
    """Converts raw instructions of one code object into symbolic ones."""

    def __init__(
        self, code: types.CodeType, slots: list[str], positions: list[Position | None]
    ) -> None:
        self.code, self.slots, self.positions = code, slots, positions

    def instructions(self, raw: _Raw) -> list[Instruction]:
        """Return one instruction, or two for a superinstruction."""
        parts = _PARTS.get(raw.op)
        if parts is None:
            return [self._instruction(raw)]
        arguments = [raw.argument] if len(parts) == 1 else [raw.argument >> 4, raw.argument & 15]
        pairs = zip(parts, arguments, strict=True)
        return [self._instruction(raw._replace(op=op, argument=argument)) for op, argument in pairs]

    def _instruction(self, raw: _Raw) -> Instruction:
        instruction = Instruction(raw.op, position=self.positions[raw.at], offset=2 * raw.at)
        kind, argument = RUNNING.kind(raw.op), raw.argument
        if kind is Kind.CONST:
            instruction.arg = self.code.co_consts[argument]
        elif kind is Kind.NAME:
            bits = RUNNING.names[raw.op]
            instruction.arg = self.code.co_names[argument >> bits]
            instruction.flag = bool(bits and argument & 1)
            instruction.explicit = bool(bits == 2 and argument & 2)
        elif kind is Kind.LOCAL or kind is Kind.CELL:
            instruction.op, instruction.arg = self._slot(raw.op, argument)
        elif kind is Kind.COMPARE:
            instruction.arg, instruction.flag = RUNNING.decode_compare(argument)
        elif kind is Kind.BINARY:
            instruction.arg = RUNNING.operators[argument]
            if instruction.arg == "[]":
                instruction.op, instruction.arg = "BINARY_SUBSCR", None
        elif kind is Kind.VALUE:
            instruction.op, instruction.arg = "LOAD_CONST", RUNNING.values[raw.op][argument]
        elif kind is Kind.INT:
            instruction.arg = argument
        elif raw.op not in RUNNING.opcodes and raw.op not in RUNNING.expansions:
            raise BytecodeError(
                f"unknown opcode {raw.op} at {2 * raw.at} in {self.code.co_qualname}"
            )
        return instruction

    def _slot(self, op: str, index: int) -> tuple[str, str]:
        """Return opcode and name; restores LOAD_CLOSURE if it was compiled to LOAD_FAST (3.13)."""
        if op == RUNNING.aliases.get("LOAD_CLOSURE") and index >= self.code.co_nlocals:
            op = "LOAD_CLOSURE"
        return op, self.slots[index]
