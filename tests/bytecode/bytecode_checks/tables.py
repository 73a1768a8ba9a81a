"""The version tables against the interpreter they describe, and the two table formats."""

from __future__ import annotations

import dis
import opcode
import random
import sys

from jitmagic.bytecode import RUNNING, Kind, Position
from jitmagic.bytecode.exceptions_table import (
    TableEntry,
    encode_exception_table,
    parse_exception_table,
)
from jitmagic.bytecode.line_table import encode_line_table, parse_line_table
from jitmagic.bytecode.versions import COMPARE_OPERATORS, tables

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def real(numbers):
    """Names of the real opcodes among some numbers."""
    return {
        name
        for name in map(opcode.opname.__getitem__, numbers)
        if name in RUNNING.opcodes and name not in {**RUNNING.superinstructions, **RUNNING.borrowed}
    }


@check
def the_running_table_is_chosen():
    assert RUNNING.version == sys.version_info[:2]
    assert set(tables()) == {(3, 11), (3, 12), (3, 13), (3, 14)}


@check
def caches_match_the_interpreter():
    entries = opcode._inline_cache_entries
    if isinstance(entries, list):
        entries = {opcode.opname[i]: count for i, count in enumerate(entries)}
    known = {name: n for name, n in entries.items() if n and name in RUNNING.opcodes}
    assert dict(RUNNING.caches) == known


@check
def argument_kinds_match_the_interpreter():
    assert {op for op in RUNNING.opcodes if op in RUNNING.consts} == real(opcode.hasconst)
    assert set(RUNNING.names) == real(opcode.hasname)
    jumps = {op for ways in RUNNING.directions.values() for op in ways if op}
    assert jumps == real([*opcode.hasjrel, *opcode.hasjabs]) - {"END_ASYNC_FOR"}  # see v314.py
    variables = {op for op in RUNNING.locals | RUNNING.cells if op in RUNNING.opcodes}
    assert variables == real([*opcode.haslocal, *opcode.hasfree])
    assert tuple(opcode.cmp_op) == COMPARE_OPERATORS
    assert tuple(symbol for _, symbol in opcode._nb_ops) == RUNNING.operators
    common = tuple(getattr(opcode, "_common_constants", ()))
    assert tuple(RUNNING.values.get("LOAD_COMMON_CONSTANT", ())) == common


@check
def every_opcode_has_a_kind():
    for op, number in RUNNING.opcodes.items():
        assert (RUNNING.kind(op) is Kind.NONE) == (number < dis.HAVE_ARGUMENT), op


@check
def comparisons_match_the_compiler():
    for operator in COMPARE_OPERATORS:
        for source in (f"a {operator} b", f"1 if a {operator} b else 2"):
            (found,) = [
                i
                for i in dis.get_instructions(compile(source, "", "eval"))
                if i.opname == "COMPARE_OP"
            ]
            shown, coerce = RUNNING.decode_compare(found.arg)
            assert shown == operator
            assert RUNNING.encode_compare(shown, coerce) == found.arg


@check
def line_tables_round_trip():
    rng = random.Random(3)
    for _ in range(300):
        line, stretches = rng.randint(1, 2000), []
        for _ in range(rng.randint(1, 30)):
            line = max(1, line + rng.choice((-300, -1, 0, 0, 1, 2, 3, 500)))
            col, width = rng.choice((0, 3, 79, 80, 127, 128, 5000)), rng.choice((0, 1, 15, 16, 90))
            kinds = (
                None,
                Position(line, line, None, None),
                Position(line, line, col, col + width),
                Position(line, line + rng.choice((0, 1, 70)), col, width),
            )
            stretches.append((rng.choice(kinds), rng.randint(1, 20)))
        wanted = [position for position, units in stretches for _ in range(units)]
        assert parse_line_table(encode_line_table(stretches, 7), 7) == wanted


@check
def exception_tables_round_trip():
    rng = random.Random(4)
    for _ in range(300):
        at, entries = 0, []
        for _ in range(rng.randint(0, 20)):
            start = at + rng.choice((0, 1, 63, 64, 5000))
            at = start + rng.choice((1, 63, 64, 300000))
            target = rng.choice((0, 5, 4096, 300000))
            entries.append(TableEntry(start, at, target, rng.randint(0, 90), rng.random() < 0.5))
        assert parse_exception_table(encode_exception_table(entries)) == entries
