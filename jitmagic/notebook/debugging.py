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
_HINT_BEFORE = (
    "jitmagic: what runs compiled keeps no locals for %pdb: run it as plain Python "
    "(%compile_off, jitmagic.disable), and the frame that raises has them"
)


def tell_of_locals(display: Callable[[Any], Any], cell: str, pdb: bool) -> None:
    """What is called before a cell runs, with its source and IPython's `display`; `pdb`: whether
    that is on, and so whether `%pdb` would switch it off.
    """
    lines = [line.split() for line in cell.splitlines() if line.lstrip().startswith("%")]
    if any(words[0] == "%pdb" and _turns_on(words[1:], pdb) for words in lines):
        display(DimLine(_HINT_BEFORE))
    if not any(words[0] == "%debug" for words in lines):
        return
    entry = getattr(sys, "last_traceback", None)
    while entry is not None:
        handle = handle_running(entry.tb_frame.f_code)
        if handle is not None and handle.family.compiler.is_listed:
            display(DimLine(_HINT.format(handle.label)))
            return  # further in are its callees, of which it is as true
        entry = entry.tb_next


def _turns_on(words: list[str], pdb: bool) -> bool:
    return words[0] in ("1", "on") if words else not pdb
