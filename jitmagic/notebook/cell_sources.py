"""cell_sources: the statements of a %%compile cell's file, for IPython's tracebacks.

Comes in: the name of a file in linecache whose first line is the magic as it was typed. That line
is not Python, so `stack_data`, with which IPython shows the statements around a line and a function
from its `def` on, would have no syntax tree of the file. Goes out: nothing; its Source of the file
has the tree of the lines from the second on. Imported with the first cell: it takes 25 ms.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from stack_data.core import Source

__all__ = ["read_below_magic"]

_MOST_READ = 32  # files; the tree of a long cell takes 0.3 MB, and stack_data keeps it for ever
_READ: deque[Any] = deque()


def read_below_magic(filename: str) -> None:
    """Have IPython know the statements of a cell's file from its second line on."""
    while len(_READ) >= _MOST_READ:
        _read_again(_READ.popleft(), [])
    source = Source.for_filename(filename)
    _read_again(source, ["\n", *(f"{line}\n" for line in source.lines[1:])])
    _READ.append(source)


def _read_again(source: Any, lines: list[str]) -> None:
    """Have it with the tree of these lines, and the text that it has."""
    shown = source.text, source.lines
    source.__init__(source.filename, lines)
    source.text, source.lines = shown
