"""cell_sources: gives IPython's tracebacks the syntax tree of a %%compile cell.

Input: a file in linecache whose first line is the magic as typed. As that line is not Python,
`stack_data`, with which IPython shows the statements around a line, could not parse the file. The
effect: stack_data's Source of the file has the tree of the lines after the first. This module is
imported with the first cell, as the import takes 25 ms.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from stack_data.core import Source

__all__ = ["read_below_magic"]

_MOST_READ = 32  # files; the tree of a long cell takes 0.3 MB, and stack_data never drops it
_READ: deque[Any] = deque()


def read_below_magic(filename: str) -> None:
    """Give stack_data the syntax tree of a cell's file without its first line."""
    while len(_READ) >= _MOST_READ:
        _read_again(_READ.popleft(), [])
    source = Source.for_filename(filename)
    _read_again(source, ["\n", *(f"{line}\n" for line in source.lines[1:])])
    _READ.append(source)


def _read_again(source: Any, lines: list[str]) -> None:
    """Parse the source again from these lines, but keep the text that it shows."""
    shown = source.text, source.lines
    source.__init__(source.filename, lines)
    source.text, source.lines = shown
