"""breaks: reports graph breaks on lines that the user can edit.

Input: compile records. Output: `BreakReport`s on the user's own lines. If a graph ends inside a
library (pandas, matplotlib, transformers), the report is on the user's line that calls it and names
the library's line; several such breaks below one line are one report.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import UserLine
from ...figures import count
from ...frame.never_hooked import is_library_file, library_name
from ...lazy_dataclass import dataclass, replace
from ...records import CompileRecord
from ...trace.result import Break, Trace
from .edits import edit_of

__all__ = ["BreakReport", "break_reports", "distinct"]


@dataclass(frozen=True, slots=True)
class BreakReport:
    """One graph break on the user's own line.

    edit: lines of a diff that removes it; library: the library in which the graph ends, or ""
    """

    kind: str
    reason: str
    hint: str
    where: UserLine
    edit: tuple[str, ...] = ()
    library: str = ""

    def __str__(self) -> str:
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.reason}\n  {self.where}{hint}"


def break_reports(records: Iterable[CompileRecord]) -> tuple[BreakReport, ...]:
    """Return a report for each compile that ended at a graph break, in order."""
    found = []
    for record in records:
        traced = record.result("trace")
        if isinstance(traced, Trace) and isinstance(traced.exit, Break):
            found.append(_report(traced.exit, *_users_place(record, traced.exit)))
    return tuple(found)


def distinct(reports: Iterable[BreakReport]) -> tuple[BreakReport, ...]:
    """Return each report once; those of one line and one library are joined."""
    found: dict[object, list[BreakReport]] = {}
    for report in dict.fromkeys(reports):
        key = (report.where, report.library) if report.library else report
        found.setdefault(key, []).append(report)
    return tuple(map(_as_one, found.values()))


def _users_place(record: CompileRecord, end: Break) -> tuple[UserLine, str]:
    """Return the user's line, and the library in which the graph ends ("" if on that line)."""
    if is_library_file(end.where.filename):
        for line in (end.line, record.occasion.called_from):
            if line is not None and not is_library_file(line.filename):
                return line, library_name(end.where.filename)
    return end.where, ""


def _report(end: Break, where: UserLine, library: str) -> BreakReport:
    reason = end.reason
    if not library:
        edit = edit_of(reason.kind, where)
        return BreakReport(reason.kind, reason.message, reason.hint, where, edit)
    place = f"{end.where.file}, line {end.where.lineno}"
    hint = f"call {library} outside of the compiled function, or accept the graph break"
    message = f"in {library} ({place}): {reason.message}"
    return BreakReport(reason.kind, message, hint, where, library=library)


def _as_one(reports: list[BreakReport]) -> BreakReport:
    first, more = reports[0], len(reports) - 1
    if not more:
        return first
    return replace(first, reason=f"{first.reason}; and {count(more, 'more place')} there")
