"""tracebacks: shows an error of a %%compile cell without the frames of the magic.

Input: a traceback that begins with IPython's frame, the call of the magic, and frames of jitmagic.
Output: IPython's frame, which IPython itself hides, then the user's. The whole traceback exists
only in IPython, after the cell has ended, so a handler for the next error is installed there
(`set_custom_exc`). A handler that the user installed is left alone.
"""

from __future__ import annotations

from types import CodeType, TracebackType
from typing import Any

from ..errors import is_ours

__all__ = ["restore_tracebacks", "trim_traceback"]

_ANY = (BaseException,)


def trim_traceback(shell: Any, runner: CodeType) -> None:
    """Have IPython show the current error without the frames before the cell's code.

    runner: the code object of the function that called the cell's code
    """
    if shell.custom_exceptions:
        return

    def show(shell: Any, kind: Any, error: BaseException, tb: Any, tb_offset: Any = None) -> None:
        restore_tracebacks(shell)
        error.__traceback__ = _from_users_line(tb, runner)
        shown = kind, error, error.__traceback__
        shell.showtraceback(shown, tb_offset=tb_offset, running_compiled_code=True)

    shell.set_custom_exc(_ANY, show)


def restore_tracebacks(shell: Any) -> None:
    """Remove the handler after a cell has ended."""
    if shell.custom_exceptions is _ANY:
        shell.set_custom_exc((), None)


def _from_users_line(whole: TracebackType, runner: CodeType) -> TracebackType:
    """Return the traceback from the user's frame on; all of it if the cell's code is not in it."""
    entry: TracebackType | None = whole
    while entry is not None and entry.tb_frame.f_code is not runner:
        entry = entry.tb_next
    while entry is not None and is_ours(entry.tb_frame):
        entry = entry.tb_next
    if entry is None:
        return whole
    return TracebackType(entry, whole.tb_frame, whole.tb_lasti, whole.tb_lineno)
