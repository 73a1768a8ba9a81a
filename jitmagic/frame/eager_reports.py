"""Reports that a tagged function runs as plain Python, once for each.

Input: a Handle (handle.py imports this module), and the outcome that says why. Output: a notice
(notice.py) on the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .. import notice
from ..errors import Unsupported, UserLine
from ..records import Eager, Missed, Outcome
from .never_hooked import in_library, users_line

__all__ = ["refused_by_stance", "report_once"]

Handles = Callable[[], Iterable[Any]]


def report_once(
    handle: Any, plain: Outcome, all_handles: Handles, *, partly: bool, once: str
) -> None:
    """Report once per tagged function that it runs as plain Python."""
    if isinstance(plain, Eager) and once not in handle.family.reported:
        handle.family.reported.add(once)
        code = handle.original.code
        first_line = UserLine(code.co_filename, code.co_firstlineno, handle.label)
        where = plain.where or first_line
        why, where = in_library(plain.why, where, users_line())
        if not _callee_reports(handle, where, all_handles):
            notice.show(handle.label, why, where, partly, handle.options.notices)


def _callee_reports(handle: Any, where: UserLine, all_handles: Handles) -> bool:
    """Return whether this is a cell's top level and a tagged function reports the same line."""
    if handle.family.compiler.is_listed:
        return False
    listed = (one for one in all_handles() if one.is_root and one.family.compiler.is_listed)
    return any(one.original.has_line(where) for one in listed)


def refused_by_stance(handle: Any, missed: Missed) -> Unsupported:
    """Return the error for a call that torch.compiler.set_stance forbids to compile."""
    difference = missed[0][1].what if missed else "it is the first"
    return Unsupported(
        f"{handle.label} would be compiled for this call, and torch.compiler.set_stance says "
        f"fail_on_recompile: {difference}",
        "",
        handle.resume_line,
    )
