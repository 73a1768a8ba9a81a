"""late: what is loaded when it is first asked for, and not before.

`import jitmagic` brings tagging and dispatch and `%load_ext jitmagic` the magics; the stages come
with the first call (or in the background, before it), the reports with the first question.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__all__ = ["collector_paused", "is_loaded", "load"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """A full collection walks torch's whole heap (0.1 s); importing and compiling set one off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_PACKAGE = sys.modules[str(__package__)]
_LOADED: dict[str, ModuleType] = {}


def is_loaded(name: str) -> bool:
    """Return whether `load` gives the module at once: one that another thread is importing is in
    `sys.modules` already, and has to be waited for.
    """
    return name in _LOADED


def load(name: str) -> ModuleType:
    """The module of the package, imported now if it has not been.

    Once the package is purged from `sys.modules`, the import system only knows another one: what
    this one has tagged goes on with the modules that it has, and refuses any others.
    """
    if name not in _LOADED:
        if sys.modules.get(_PACKAGE.__name__) is not _PACKAGE:
            raise ImportError(f"{_PACKAGE.__name__} was purged from sys.modules since its import")
        with collector_paused():
            _LOADED[name] = importlib.import_module(f"{_PACKAGE.__name__}.{name}")
    return _LOADED[name]
