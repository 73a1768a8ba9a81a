"""why: what a call would run, without running anything.

Comes in: something tagged, and arguments. Goes out: an `Answer`, plain data and text: the variant
whose guards all hold, or for each variant the first that does not, on the user's line, with the
edit that would make it fit; and what would happen then, in the parts that follow a graph break too.
Guards are read, no user code runs, and no counter changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..api import tagged_handle
from ..frame.binding import bind
from ..frame.handle import Handle
from ..records import Compiled, Eager, Failed, Missed
from ..trace.result import Break, Trace
from .words import HINT, Question, Readable, count, here, refuse_arguments

__all__ = ["Answer", "why"]

_FEW = ("has no variant yet", "does not fit its only variant")


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Readable):
    """What one call of `name` would run.

    variant: the number of the variant that fits, as `explain` counts them; None where none does
    then: what would happen, in words
    missed: by number of variant what keeps it from fitting, the one used last first
    rest: a line for each part that follows a graph break of that variant
    """

    name: str
    variant: int | None
    then: str
    missed: Missed = ()
    rest: tuple[str, ...] = ()

    def told(self) -> list[tuple[str, str]]:
        lines = [(f"{self.name} {self.then}", "")]
        lines += [(f"  {line}", "") for line in self.rest]
        for number, difference in self.missed:
            lines.append((f"  variant {number}: {difference.what}", ""))
            if difference.where is not None:
                lines.append((f"    needed by {here(difference.where)}", HINT))
            if difference.edit:
                lines.append((f"    to stop it: {difference.edit}", HINT))
        return lines


def why(target: Callable[..., Any], /, *arguments: Any) -> Question[Answer]:
    """`why(fn)(*args)`: which variant `fn(*args)` would run, or what keeps each from fitting.

    Nothing runs, is compiled or counted. Raises TypeError for what is not tagged.
    """
    refuse_arguments("why", arguments)
    tagged_handle(target)

    def answer(*args: Any, **kwargs: Any) -> Answer:
        return _answer(*bind(target, args, kwargs))

    return Question("why", target, answer)


def _answer(handle: Handle, values: tuple[Any, ...]) -> Answer:
    entries = handle.dispatcher.entries
    for entry in entries:
        if entry.check(values):
            number = entry.notes.number
            of = f"variant {number} of {len(entries)}"
            until = _until(handle, number)
            then = f"would run {of}: {_state(entry.notes.outcome)}{until}"
            return Answer(handle.label, number, then, rest=_rest(handle) if until else ())
    return Answer(handle.label, None, _without_entry(handle, values), handle.why_missed(values))


def _state(outcome: Compiled | Eager | Failed) -> str:
    if isinstance(outcome, Compiled):
        return "compiled code"
    return f"plain Python, because {outcome.why}"


def _rest(handle: Handle) -> tuple[str, ...]:
    """The resume functions, in the order of their lines: which of a part's variants fits is known
    only when the values that its guards are about have been computed.
    """
    parts = [(part, where) for part in handle.family.members if (where := part.resume_line)]
    ordered = sorted(parts, key=lambda pair: pair[1].lineno)
    return tuple(f"then from {here(where)}: {_variants(part)}" for part, where in ordered)


def _variants(part: Handle) -> str:
    """All variants of a resume function, those that end alike together."""
    entries = part.dispatcher.entries
    if not entries:
        return "plain Python" if part.given_up is not None else "not compiled yet"
    told = [_state(e.notes.outcome) + _until(part, e.notes.number) for e in entries]
    states = list(dict.fromkeys(told))
    if len(states) == 1:
        which = "" if len(told) == 1 else f" ({len(told)} variants, by the values at the break)"
        return f"{states[0]}{which}"
    each = [f"variant {e.notes.number} {text}" for e, text in zip(entries, told, strict=True)]
    return "; ".join(each)


def _until(handle: Handle, number: int) -> str:
    """Where that variant ends: what follows a graph break has guards about values that are not
    there yet.
    """
    for record in handle.journal:
        traced = record.result("trace")
        if (record.frame, record.number) == (handle.serial, number) and isinstance(traced, Trace):
            end = traced.exit
            place = here(end.where) if isinstance(end, Break) else ""
            return f", up to the graph break at {place}" if place else ""
    return ""


def _without_entry(handle: Handle, values: tuple[Any, ...]) -> str:
    known = len(handle.dispatcher.entries)
    fits = f"fits none of its {count(known, 'variant')}" if known > 1 else _FEW[known]
    if (given_up := handle.given_up) is not None:
        return f"{fits} and would run as plain Python, because {given_up.why}"
    limit = handle.options.recompile_limit
    if handle.ledger.is_full(values, limit):
        return f"{fits} and would run as plain Python: recompile_limit={limit} is reached"
    return f"{fits} and would be compiled first"
