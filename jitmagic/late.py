"""late: what is loaded when it is first asked for, and not before.

`import jitmagic` brings tagging and dispatch and `%load_ext jitmagic` the magics; the stages come
with the first call (or in the background, before it), the reports with the first question.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__all__ = ["collector_paused", "load"]


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


def load(name: str) -> ModuleType:
    """The module of the package, imported now if it has not been."""
    with collector_paused():
        return importlib.import_module(f"{__package__}.{name}")
