"""Parses and encodes co_linetable, the location table of PEP 626 / 657.

Input: the bytes, or one position per run of code units. Output: the other form. Each entry covers
1-8 code units: a head byte 1 kkkk lll (kind, length - 1), then data that depends on the kind. Lines
are differences to the entry before, starting from co_firstlineno. Format: CPython
Objects/locations.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .instruction import Position

__all__ = ["encode_line_table", "parse_line_table"]

_ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 10, 13, 14, 15


def parse_line_table(table: bytes, firstlineno: int) -> list[Position | None]:
    """Return the position of every code unit (caches and prefixes included)."""
    positions: list[Position | None] = []
    data = iter(table)
    line = firstlineno
    for head in data:
        kind, units = head >> 3 & 15, (head & 7) + 1
        position: Position | None = None
        if kind != _NONE:
            line += _line_delta(kind, data)
            position = _position(kind, line, data)
        positions.extend([position] * units)
    return positions


def _line_delta(kind: int, data: Iterator[int]) -> int:
    if kind < _ONE_LINE:
        return 0
    if kind < _NO_COLUMNS:
        return kind - _ONE_LINE
    value = _read_varint(data)
    return -(value >> 1) if value & 1 else value >> 1


def _position(kind: int, line: int, data: Iterator[int]) -> Position:
    if kind < _ONE_LINE:
        second = next(data)
        col = kind << 3 | second >> 4
        return Position(line, line, col, col + (second & 15))
    if kind < _NO_COLUMNS:
        return Position(line, line, next(data), next(data))
    if kind == _NO_COLUMNS:
        return Position(line, line, None, None)
    end_lineno = line + _read_varint(data)
    col, end_col = _read_varint(data), _read_varint(data)
    return Position(line, end_lineno, col - 1 if col else None, end_col - 1 if end_col else None)


def _read_varint(data: Iterator[int]) -> int:
    value = shift = 0
    for byte in data:
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
    return value


def encode_line_table(runs: Iterable[tuple[Position | None, int]], firstlineno: int) -> bytes:
    """Encode consecutive (position, number of code units) pairs."""
    out = bytearray()
    line = firstlineno
    for position, units in _merged(runs):
        for done in range(0, units, 8):
            out += _entry(position, min(units - done, 8), line)
            line = position.lineno if position else line
    return bytes(out)


def _merged(
    runs: Iterable[tuple[Position | None, int]],
) -> Iterator[tuple[Position | None, int]]:
    current: Position | None = None
    total = 0
    for position, units in runs:
        if position != current:
            if total:
                yield current, total
            current, total = position, 0
        total += units
    if total:
        yield current, total


def _entry(position: Position | None, units: int, line: int) -> bytes:
    if position is None:
        return bytes([_head(_NONE, units)])
    delta = position.lineno - line
    end_lineno = position.lineno if position.end_lineno is None else position.end_lineno
    col, end_col = position.col, position.end_col
    one_line = end_lineno == position.lineno
    if one_line and col is None and end_col is None:
        return bytes([_head(_NO_COLUMNS, units)]) + _signed_varint(delta)
    if one_line and col is not None and end_col is not None:
        if delta == 0 and col < 80 and 0 <= end_col - col < 16:
            return bytes([_head(col >> 3, units), (col & 7) << 4 | end_col - col])
        if 0 <= delta < 3 and col < 128 and end_col < 128:
            return bytes([_head(_ONE_LINE + delta, units), col, end_col])
    columns = _varint(0 if col is None else col + 1) + _varint(
        0 if end_col is None else end_col + 1
    )
    lines = _signed_varint(delta) + _varint(end_lineno - position.lineno)
    return bytes([_head(_LONG, units)]) + lines + columns


def _head(kind: int, units: int) -> int:
    return 0x80 | kind << 3 | units - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 64:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)
