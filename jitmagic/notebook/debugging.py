"""debugging: hints, for `%debug` and `%pdb`, that compiled code has no local variables to show.

Input: a cell that is about to run, and the last error. The frame of compiled code has the user's
arguments but no intermediate values. Output: a line that says how to get them, before such a magic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..api import handle_running
from .display import DimLine

__all__ = ["hint_about_locals"]


_HINT = (
    "jitmagic: {} ran compiled, which keeps no locals for %debug: run it as plain Python "
    "(%compile_off, jitmagic.disable), and the frame that raises has them"
)
_HINT_BEFORE = (
    "jitmagic: compiled code keeps no locals for %pdb: run it as plain Python "
    "(%compile_off, jitmagic.disable), and the frame that raises has them"
)


def hint_about_locals(display: Callable[[object], object], cell: str, pdb: bool) -> None:
    """Display the hint if the cell about to run uses %debug or switches %pdb on.

    pdb: whether %pdb is on, in which case `%pdb` without an argument switches it off
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
            return  # the inner frames are its callees, for which the same holds
        entry = entry.tb_next


def _turns_on(words: list[str], pdb: bool) -> bool:
    return words[0] in ("1", "on") if words else not pdb
