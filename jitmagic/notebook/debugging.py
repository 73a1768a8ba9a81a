"""%debug after an error in compiled code: one line says how it comes to have the locals.

Comes in: a cell that is about to run, and the error before it. The frame of compiled code has the
user's arguments, but not what the graph computed in between. Goes out: a line, where that is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..api import handle_running
from .display import DimLine

__all__ = ["tell_of_locals"]


_HINT = (
    "jitmagic: {} ran compiled, which keeps no locals for %debug: run it as plain Python "
    "(%compile_off, jitmagic.disable), and the frame that raises has them"
)


def tell_of_locals(display: Callable[[Any], Any], cell: str) -> None:
    """What is called before a cell runs, with its source and IPython's `display`."""
    if not any(line.lstrip().startswith("%debug") for line in cell.splitlines()):
        return
    entry = getattr(sys, "last_traceback", None)
    while entry is not None:
        handle = handle_running(entry.tb_frame.f_code)
        if handle is not None and handle.family.compiler.is_listed:
            display(DimLine(_HINT.format(handle.label)))
            return  # further in are its callees, of which it is as true
        entry = entry.tb_next
