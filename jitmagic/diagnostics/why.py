"""why: predicts which compiled variant a call would run, without running anything.

Input: a tagged function and arguments. Output: an `Answer` with the variant whose guards all hold,
or the first failing guard of each variant, with the user's line and an edit that avoids it. It also
describes the resume functions after a graph break. Only guards are evaluated: no user code runs and
no counter changes.
"""

from __future__ import annotations

from ..api import tagged_handle
from ..frame.binding import bind
from ..frame.handle import Handle
from ..lazy_dataclass import dataclass
from ..records import Compiled, Eager, Failed, Missed
from ..torch_types import AnyFunction
from ..trace.result import Break, Trace
from .words import HINT, Question, Readable, count, here, refuse_arguments

__all__ = ["Answer", "why"]

_FEW = ("has no variant yet", "does not fit its only variant")


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Readable):
    """The predicted outcome of one call of `name`.

    `variant`: the number of the matching variant, as in `explain`, or None. `then`: what the call
    would do, in words. `missed`: (variant number, failing guard), the most recently used variant
    first. `rest`: a line for each resume function after a graph break of that variant.
    """

    name: str
    variant: int | None
    then: str
    missed: Missed = ()
    rest: tuple[str, ...] = ()

    def styled_lines(self) -> list[tuple[str, str]]:
        lines = [(f"{self.name} {self.then}", "")]
        lines += [(f"  {line}", "") for line in self.rest]
        for number, difference in self.missed:
            lines.append((f"  variant {number}: {difference.what}", ""))
            if difference.where is not None:
                lines.append((f"    needed by {here(difference.where)}", HINT))
            if difference.edit:
                lines.append((f"    to stop it: {difference.edit}", HINT))
        return lines


def why(target: AnyFunction, /, *arguments: object) -> Question[Answer]:
    """`why(fn)(*args)`: report which variant `fn(*args)` would run, or why none matches.

    Nothing runs, is compiled or counted. Raises TypeError if `target` is not tagged.
    """
    refuse_arguments("why", arguments)
    tagged_handle(target)

    def answer(*args: object, **kwargs: object) -> Answer:
        return _answer(*bind(target, args, kwargs))

    return Question("why", target, answer)


def _answer(handle: Handle, values: tuple[object, ...]) -> Answer:
    if handle.pieces:
        then = "is compiled between its suspension points, for the values that are known there"
        return Answer(handle.label, None, then, rest=_rest(handle))
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
    """Return a line for each resume function, in the order of the source.

    The matching variant of a resume function is not known: its guards test values that the code
    before the break has yet to compute.
    """
    parts = [(part, where) for part in handle.family.members if (where := part.resume_line)]
    ordered = sorted(parts, key=lambda pair: pair[1].lineno)
    return tuple(f"then from {here(where)}: {_variants(part)}" for part, where in ordered)


def _variants(part: Handle) -> str:
    """Describe the variants of a resume function, equal descriptions once."""
    entries = part.dispatcher.entries
    if not entries:
        return "plain Python" if part.given_up is not None else "not compiled yet"
    texts = [_state(e.notes.outcome) + _until(part, e.notes.number) for e in entries]
    states = list(dict.fromkeys(texts))
    if len(states) == 1:
        which = "" if len(texts) == 1 else f" ({len(texts)} variants, by the values at the break)"
        return f"{states[0]}{which}"
    each = [f"variant {e.notes.number} {text}" for e, text in zip(entries, texts, strict=True)]
    return "; ".join(each)


def _until(handle: Handle, number: int) -> str:
    """Return the graph break at which that variant ends, in words; "" if it has none."""
    for record in handle.journal:
        traced = record.result("trace")
        if (record.frame, record.number) == (handle.serial, number) and isinstance(traced, Trace):
            end = traced.exit
            place = here(end.where) if isinstance(end, Break) else ""
            return f", up to the graph break at {place}" if place else ""
    return ""


def _without_entry(handle: Handle, values: tuple[object, ...]) -> str:
    known = len(handle.dispatcher.entries)
    fits = f"fits none of its {count(known, 'variant')}" if known > 1 else _FEW[known]
    if (given_up := handle.given_up) is not None:
        return f"{fits} and would run as plain Python, because {given_up.why}"
    limit = handle.options.recompile_limit
    if handle.ledger.is_full(values, limit):
        return f"{fits} and would run as plain Python: recompile_limit={limit} is reached"
    return f"{fits} and would be compiled first"
