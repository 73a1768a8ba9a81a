"""An error of a %%compile cell, shown from the user's line on, as a plain cell's is.

Comes in: a traceback that begins with IPython's frame, the call of the magic and frames of ours.
Goes out: IPython's frame, which IPython leaves out by itself, then the user's. Only IPython sees
the whole traceback, when the cell has ended, so it is asked to hand over the next error. A handler
of the user's own (`set_custom_exc`) has its place and is left alone.

The file of such a cell is what the user typed. Its first line is no Python, so IPython, which shows
the statements around a line, has to be given those of the lines after it.
"""

from __future__ import annotations

from collections import deque
from types import CodeType, TracebackType
from typing import Any

from ..errors import is_ours

try:
    from stack_data import Source
except ImportError:  # an IPython without it shows lines
    Source = None

__all__ = ["read_below_magic", "show_as_ever", "show_from_users_line"]

_MOST_READ = 32  # files; a tree of a long cell takes 0.3 MB, and IPython keeps it for ever
_READ: deque[Any] = deque()
_ANY = (BaseException,)


def read_below_magic(filename: str) -> None:
    """Have IPython know the statements of a cell's file from its second line on."""
    if Source is None:
        return
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


def show_from_users_line(shell: Any, runner: CodeType) -> None:
    """Show the error under way without what stands in front of the cell's code; `runner`: the code
    of the function that called that.
    """
    if shell.custom_exceptions:
        return

    def show(shell: Any, kind: Any, error: BaseException, tb: Any, tb_offset: Any = None) -> None:
        show_as_ever(shell)
        error.__traceback__ = _from_users_line(tb, runner)
        shown = kind, error, error.__traceback__
        shell.showtraceback(shown, tb_offset=tb_offset, running_compiled_code=True)

    shell.set_custom_exc(_ANY, show)


def show_as_ever(shell: Any) -> None:
    """A cell has ended: the next error is no compiled cell's."""
    if shell.custom_exceptions is _ANY:
        shell.set_custom_exc((), None)


def _from_users_line(whole: TracebackType, runner: CodeType) -> TracebackType:
    """The whole, if the cell's code did not raise it: user's code may have caught that."""
    entry: TracebackType | None = whole
    while entry is not None and entry.tb_frame.f_code is not runner:
        entry = entry.tb_next
    while entry is not None and is_ours(entry.tb_frame):
        entry = entry.tb_next
    if entry is None:
        return whole
    return TracebackType(entry, whole.tb_frame, whole.tb_lasti, whole.tb_lineno)
