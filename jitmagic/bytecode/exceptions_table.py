"""Parses and encodes co_exceptiontable.

Input: the bytes, or entries in code units. Output: the other form. Each entry is four big-endian
base-64 numbers (start, length, target, depth << 1 | lasti). Bit 7 marks the first byte of an entry,
bit 6 says that the number continues. Entries are sorted and do not overlap, because the interpreter
bisects. Format: CPython Objects/exception_handling_notes.txt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["TableEntry", "encode_exception_table", "parse_exception_table"]


class TableEntry(NamedTuple):
    """Code units start..end (exclusive) unwind to `target`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def parse_exception_table(table: bytes) -> list[TableEntry]:
    """Return the entries in table order."""
    data = iter(table)
    entries = []
    for first in data:
        start = _read_varint(data, first)
        length, target, depth = (_read_varint(data, next(data)) for _ in range(3))
        entries.append(TableEntry(start, start + length, target, depth >> 1, bool(depth & 1)))
    return entries


def _read_varint(data: Iterator[int], byte: int) -> int:
    value = byte & 63
    while byte & 64:
        byte = next(data)
        value = value << 6 | byte & 63
    return value


def encode_exception_table(entries: Iterable[TableEntry]) -> bytes:
    """Encode sorted entries that do not overlap."""
    out = bytearray()
    for entry in entries:
        head = len(out)
        depth = entry.depth << 1 | entry.lasti
        for value in (entry.start, entry.end - entry.start, entry.target, depth):
            out += _varint(value)
        out[head] |= 128
    return bytes(out)


def _varint(value: int) -> bytes:
    digits = [value & 63]
    while value := value >> 6:
        digits.append(value & 63 | 64)
    return bytes(reversed(digits))
