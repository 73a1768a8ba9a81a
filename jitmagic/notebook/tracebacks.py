"""An error of a %%compile cell, shown from the user's line on, as a plain cell's is.

Comes in: a traceback that begins with IPython's frame, the call of the magic and frames of ours.
Goes out: IPython's frame, which IPython leaves out by itself, then the user's. Only IPython sees
the whole traceback, when the cell has ended, so it is asked to hand over the next error. A handler
of the user's own (`set_custom_exc`) has its place and is left alone.
"""

from __future__ import annotations

from types import CodeType, TracebackType
from typing import Any

from ..errors import is_ours

__all__ = ["show_as_ever", "show_from_users_line"]

_ANY = (BaseException,)


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
