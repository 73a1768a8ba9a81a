"""Holds the warnings of traced calls as data, and shows them.

In: calls that a trace makes in the name of a user line. Out: CallWarnings, which a compiled entry
keeps: a process that finds the entry on disk traces nothing, and shows them as the trace did,
through the filters of the user and once for a line, if these say so.

A warning is caught whatever the filters say, as those of the next process may be others. CPython
has no interface for that: `warnings.catch_warnings` makes a new list of filters and forgets what
was shown where, so that other modules and threads would show theirs again. Instead, a row that
matches on this thread alone stands in front of the filters while a call runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from .lazy_dataclass import dataclass

__all__ = [
    "CallWarning",
    "caught_warnings",
    "module_of_file",
    "note_shown",
    "noted_warnings",
    "raises_warnings",
    "show_warnings",
    "warning_always",
]


@dataclass(frozen=True, slots=True)
class CallWarning:
    """A warning of a call: what `warnings.warn_explicit` takes."""

    message: Warning
    filename: str
    lineno: int
    is_once: bool = False  # torch gives it once in a process, unless `torch.set_warn_always` is on
    varies: bool = False  # its text may name sizes that are others in the next call

    @property
    def text(self) -> str:
        """Return the text that is shown."""
        return str(self.message)


_shown_once: set[str] = set()  # texts
_shown_lock = threading.Lock()
_flag_lock = threading.RLock()  # of torch's flag, which is one for all threads


def note_shown(text: str) -> bool:
    """Note that torch gives a warning that it gives once in a process; return whether it is the
    first time.
    """
    with _shown_lock:
        is_new = text not in _shown_once
        _shown_once.add(text)
        return is_new


def show_warnings(shown: Iterable[CallWarning]) -> None:
    """Show warnings as their calls would, and note them all. Raises one that a filter of the user
    makes an error.
    """
    for one in shown:
        if _this_thread.noted is not None:
            _this_thread.noted.append(one)
        if one.is_once and not note_shown(one.text) and not torch.is_warn_always_enabled():
            continue
        names = vars(module_of_file(one.filename))
        registry = names.setdefault("__warningregistry__", {})
        module = names.get("__name__") or "<string>"
        warnings.warn_explicit(
            one.message, type(one.message), one.filename, one.lineno, module, registry
        )


def raises_warnings(category: type) -> bool:
    """Return whether a filter turns such a warning into an error, which ends the traced program."""
    kinds = [kind for action, _, kind, *_ in warnings.filters if action == "error"]
    return any(issubclass(category, kind) for kind in kinds)


@contextmanager
def noted_warnings() -> Iterator[list[CallWarning]]:
    """Note the warnings that this thread shows in the block."""
    before, _this_thread.noted = _this_thread.noted, []
    try:
        yield _this_thread.noted
    finally:
        _this_thread.noted = before


@contextmanager
def warning_always(is_on: bool) -> Iterator[None]:
    """Set `torch.set_warn_always` in the block, unless another thread is in such a block for long:
    threads that overlap would restore what the other has set.
    """
    if not _flag_lock.acquire(timeout=1.0):
        yield
        return
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(is_on)
    try:
        yield
    finally:
        torch.set_warn_always(before)
        _flag_lock.release()


def module_of_file(filename: str) -> ModuleType:
    """Return the module with that file; notebook cells belong to `__main__`."""
    return sys.modules.get(_name_of(filename)) or sys.modules["__main__"]


@lru_cache(maxsize=256)
def _name_of(filename: str) -> str:
    loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    found = (m.__name__ for m in loaded if vars(m).get("__file__") == filename)
    return next(found, "__main__")


# ---------------------------------------------------------------------------------------- catching


class _ThisThread(threading.local):
    caught: list[CallWarning] | None = None  # of the call that runs; None: there is none
    noted: list[CallWarning] | None = None

    def match(self, module: str) -> bool:
        """Return whether this thread's warnings are caught, as the module's pattern in a filter."""
        return self.caught is not None


_this_thread = _ThisThread()
_ROW: Any = ("always", None, Warning, _this_thread, 0)
_lock = threading.Lock()
_running: set[object] = set()  # the blocks in which warnings are caught, of all threads
_around: list[Any] = []  # outside of them: the list of filters, and the functions that show


@contextmanager
def caught_warnings() -> Iterator[list[CallWarning]]:
    """Catch the warnings of this thread in the block; none is shown."""
    before, _this_thread.caught = _this_thread.caught, []
    block = object()
    try:
        with _lock:
            if not _running:
                _begin()
            _running.add(block)
        yield _this_thread.caught
    finally:
        with _lock:
            _running.discard(block)
            if not _running:
                _end()
        _this_thread.caught = before


def _begin() -> None:
    module: Any = warnings
    _around[:] = module.filters, module._showwarnmsg, module._showwarnmsg_impl
    module.filters.insert(0, _ROW)
    module._showwarnmsg = _catch


def _end() -> None:
    module: Any = warnings
    filters, shows, _ = _around
    for one in (filters, module.filters):  # another thread may have made a copy of the list
        while _ROW in one:
            one.remove(_ROW)
    module._showwarnmsg = shows


def _catch(warning: Any) -> None:
    """Take a warning in place of `warnings._showwarnmsg`, unless it is another thread's, or the
    call records its warnings itself (`catch_warnings(record=True)`).
    """
    module: Any = warnings
    _, shows, records = _around
    if _this_thread.caught is None or module._showwarnmsg_impl is not records:
        shows(warning)
        return
    _this_thread.caught.append(CallWarning(warning.message, warning.filename, warning.lineno))
