"""Imports parts of the package at their first use.

`import jitmagic` loads tagging and dispatch, `%load_ext jitmagic` the magics. The stages of the
compiler are loaded by the first call, or in the background before it; diagnostics at the first use
of one of them.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__all__ = ["collector_paused", "importing", "is_loaded", "load", "short_turns"]

# Seconds for which one thread keeps the interpreter while another waits for it. With Python's own
# 5 ms, a training step of short operations took 2.7 times as long beside a compile, with this 1.3.
_TURN = 0.0005


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector. Importing and compiling trigger full collections, and each walks all
    objects of torch (0.1 s).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads take turns more often during the block, in which this one works for others. If
    the program sets the interval meanwhile, that stays.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN))
    short = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == short:
            sys.setswitchinterval(before)


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector, and spare it the walk of what is imported, which stays for good: 5 ms
    after `import jitmagic`, 20 ms after the stages.
    """
    with collector_paused():
        yield
        if not gc.get_freeze_count():  # else this would thaw what the program froze
            gc.freeze()
            gc.unfreeze()  # into the oldest generation


_PACKAGE = sys.modules[str(__package__)]
_LOADED: dict[str, ModuleType] = {}


def is_loaded(name: str) -> bool:
    """Return whether `load` returns without waiting. sys.modules cannot tell: a module that another
    thread is still importing is in it already.
    """
    return name in _LOADED


def load(name: str) -> ModuleType:
    """Return the module of that name below the package, importing it if needed.

    Raises ImportError if the package was removed from `sys.modules` after its import: importing
    would mix this copy's modules with those of a newly imported one. Functions that this copy
    tagged go on with the modules loaded so far.
    """
    if name not in _LOADED:
        if sys.modules.get(_PACKAGE.__name__) is not _PACKAGE:
            raise ImportError(f"{_PACKAGE.__name__} was purged from sys.modules since its import")
        with importing():
            _LOADED[name] = importlib.import_module(f"{_PACKAGE.__name__}.{name}")
    return _LOADED[name]
