"""blame: tracebacks that show the user's frames once each, and nothing of ours.

Comes in: an exception on its way out of a call stub, its traceback beginning with the stub's own
entry, or out of a dispatcher that a module calls without one. Goes out: the same exception, its
traceback as eager's would be: without the stub, without what stands between the stub and the frame
that runs as plain Python, each frame with the user's parameters only, and, when a compile raised it
on purpose or was interrupted (fullgraph=True, Ctrl-C), without all that goes on in there. What
nobody meant to raise keeps its inner frames: it is a mistake of jitmagic's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .. import _frame
from ..bytecode import shown_as
from ..errors import JitmagicError, JitmagicWarning
from .original import Original

__all__ = ["forget_ours", "forget_stub"]

_PACKAGE = str(Path(__file__).parents[1])
_PLAIN = Original.run.__code__


def forget_stub(error: BaseException) -> None:
    """Edit: the traceback of an exception that a call stub passes on."""
    if error.__traceback__ is not None:
        error.__traceback__ = _shown(error, error.__traceback__.tb_next)


def forget_ours(error: BaseException) -> None:
    """Edit: the traceback of an exception that comes out of a dispatcher, without a stub."""
    error.__traceback__ = _shown(error, error.__traceback__)


def _shown(error: BaseException, inner: TracebackType | None) -> TracebackType | None:
    """What the user has to see of the entries that a dispatcher left."""
    first = inner
    for entry in _entries(inner):  # stubs further in have shown theirs already: the rest is ours
        if entry.tb_frame.f_code is _PLAIN:
            first = entry.tb_next
        _show_users_parameters(entry)
    for cause in _causes(error):
        for entry in _entries(cause.__traceback__):
            _show_users_parameters(entry)
    meant = isinstance(error, JitmagicError | JitmagicWarning) or not isinstance(error, Exception)
    return None if meant and first is not None and _is_ours(first) else first


def _entries(first: TracebackType | None) -> Iterator[TracebackType]:
    while first is not None:
        yield first
        first = first.tb_next


def _causes(error: BaseException) -> list[BaseException]:
    """What was being handled when it was raised, which is shown with it."""
    found: list[BaseException] = [error]
    for each in found:
        found += [e for e in (each.__cause__, each.__context__) if e is not None and e not in found]
    return found[1:]


def _show_users_parameters(entry: TracebackType) -> None:
    code = shown_as(entry.tb_frame.f_code)
    if code is not None:
        _frame.show_as(entry.tb_frame, code)


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)
