"""Edits tracebacks so that they show each user frame once and no frame of jitmagic.

Input: an exception that leaves a call stub (its traceback begins with the stub's own entry), or
that leaves a dispatcher which a module calls without a stub. Output: the same exception with the
traceback that eager would give. Removed are the stub and the frames between it and the frame that
runs as plain Python; each frame shows the user's parameters only. An error that a compile raises on
purpose (fullgraph=True), or an interrupt (Ctrl-C), also loses the frames of the compiler. An
unexpected error keeps them, because it is a bug in jitmagic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .. import _frame
from ..bytecode import shown_as
from ..errors import JitmagicError, JitmagicWarning
from .original import Original

__all__ = ["strip_dispatcher_frames", "strip_stub_frames"]

_PACKAGE = str(Path(__file__).parents[1])
_PLAIN = Original.run.__code__


def strip_stub_frames(error: BaseException) -> None:
    """Edit the traceback of an exception that leaves a call stub."""
    if error.__traceback__ is not None:
        error.__traceback__ = _visible_part(error, error.__traceback__.tb_next)


def strip_dispatcher_frames(error: BaseException) -> None:
    """Edit the traceback of an exception that leaves a dispatcher called without a stub."""
    error.__traceback__ = _visible_part(error, error.__traceback__)


def _visible_part(error: BaseException, inner: TracebackType | None) -> TracebackType | None:
    """Return the part of a dispatcher's traceback that the user should see."""
    first = inner
    for entry in _entries(inner):  # inner stubs have edited their own part already
        if entry.tb_frame.f_code is _PLAIN:
            first = entry.tb_next
        _show_users_parameters(entry)
    for cause in _causes(error):
        for entry in _entries(cause.__traceback__):
            _show_users_parameters(entry)
    meant = isinstance(error, JitmagicError | JitmagicWarning) or not isinstance(error, Exception)
    return None if meant and first is not None and _is_of_jitmagic(first) else first


def _entries(first: TracebackType | None) -> Iterator[TracebackType]:
    while first is not None:
        yield first
        first = first.tb_next


def _causes(error: BaseException) -> list[BaseException]:
    """Return the chained exceptions (`__cause__`, `__context__`), which are printed too."""
    found: list[BaseException] = [error]
    for each in found:
        found += [e for e in (each.__cause__, each.__context__) if e is not None and e not in found]
    return found[1:]


def _show_users_parameters(entry: TracebackType) -> None:
    code = shown_as(entry.tb_frame.f_code)
    if code is not None:
        _frame.show_as(entry.tb_frame, code)


def _is_of_jitmagic(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)
