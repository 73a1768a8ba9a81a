"""verdict: says whether compiling a function was worth it, in the same words for every report.

Input: a handle. Output: a `Verdict`, plain data. Its speed is that of the A/B comparison
(frame/timing/comparison.py): medians of the user's own calls, compiled and eager in turns. The
title of `explain`, the card of a function, `%compile_status` and the line below a cell show it.

The cost of graph breaks comes from the same calls: the part of a compiled call in which no compiled
graph runs (`Measured.outside`). That is the Python code at the breaks, which eager runs too,
operations that run as eager there, and the entry into the resume functions.
"""

from __future__ import annotations

from ...errors import RUN_NAME
from ...figures import count, duration
from ...frame.handle import Handle
from ...lazy_dataclass import dataclass
from ...records import Compiled, CompileRecord, Measured
from .breaks import break_reports, distinct

__all__ = [
    "BREAKS_COST",
    "PLAIN",
    "UNMEASURED",
    "Verdict",
    "breaks_of",
    "compiled_in",
    "measured_of",
    "paid_after",
    "payback",
    "shown_name",
    "verdict_of",
]

FASTER, SLOWER, EQUAL, UNKNOWN, PLAIN = "faster", "slower", "equal", "unknown", "plain"
_SHORT = 100e-6  # seconds of an eager call below which the cost of entering compiled code matters
# A note on every page that shows the cost of graph breaks.
BREAKS_COST = (
    "Graph breaks: the part of the compiled calls in which no compiled graph runs: the Python at "
    "the breaks, which eager runs too, and the way back into compiled code."
)
_NOTHING, _MUCH = 0.01, 0.2  # shares of a call
_HOW = "call it a few times or use %jit_timeit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The speed of a function against eager, in words.

    tone: "faster", "slower", "equal", "unknown" (not measured) or "plain" (nothing compiled)
    speed: `3.1x faster than eager`, `slower`, `not measured yet`
    details: the measured times, or how to get them; because: the reason why it is not faster
    breaks: `2 graph breaks take 40 % of each call`; "" without breaks or without their time
    """

    tone: str
    speed: str
    details: str = ""
    because: str = ""
    breaks: str = ""

    @property
    def rest(self) -> str:
        """The text after the speed."""
        reasons = ", ".join(filter(None, (self.details, self.because)))
        return "; ".join(filter(None, (reasons, self._breaks_once)))

    @property
    def _breaks_once(self) -> str:
        """The cost of breaks; "" if `because` contains it already."""
        return "" if self.breaks and self.breaks in self.because else self.breaks

    def about(self, name: str) -> str:
        """Return a sentence: `step is 3.1x faster than eager (...)`."""
        return f"{name} {self}" if self.tone == PLAIN else f"{name} is {self}"

    def __str__(self) -> str:
        """Return `3.1x faster than eager (0.41 ms instead of 1.27 ms, ...)`."""
        if self.tone in (SLOWER, UNKNOWN, PLAIN):
            return f"{self.speed}: {self.rest}" if self.rest else self.speed
        text = f"{self.speed} ({self.details})" + (f", {self.because}" if self.because else "")
        return f"{text}; {self._breaks_once}" if self._breaks_once else text


UNMEASURED = Verdict(UNKNOWN, "not measured yet", _HOW)


def measured_of(handle: Handle) -> Measured | None:
    """Return the measurement of the variant with most calls; None if no variant was measured."""
    hits = {entry.notes.number: entry.hits for entry in handle.dispatcher.entries}
    known = [
        record
        for record in handle.journal
        if record.frame == handle.serial and record.measured is not None
    ]
    most = max(known, key=lambda record: hits.get(record.number, -1), default=None)
    return None if most is None else most.measured


def breaks_of(handle: Handle) -> int:
    """Return the number of lines at which the function's variants have graph breaks."""
    return len(distinct(break_reports(handle.journal)))


def verdict_of(handle: Handle) -> Verdict:
    """Return the verdict about a tagged function."""
    measured = measured_of(handle)
    is_compiled = handle.ledger.is_compiled
    if measured is None:
        return _unmeasured(handle, is_compiled)
    speed, breaks = measured.speed, _cost_of_breaks(handle, measured)
    if not is_compiled or speed == SLOWER:
        ends = "" if is_compiled else "; runs as plain Python from now on"
        because = f"because {_why_slow(handle, measured)}{ends}"
        return Verdict(SLOWER, "slower", measured.times, because, breaks)
    tone = FASTER if " faster " in speed else EQUAL
    because = "" if tone == FASTER else f"because {_why_slow(handle, measured)}"
    return Verdict(tone, speed, measured.times, because, breaks)


def _cost_of_breaks(handle: Handle, measured: Measured) -> str:
    """Return `2 graph breaks take 40 % of each call`; "" without breaks, or without their time."""
    breaks = breaks_of(handle)
    if not breaks or measured.outside is None:
        return ""
    part = max(0.0, min(1.0, measured.outside / measured.compiled))
    share = f"{100 * part:.0f} %" if part >= _NOTHING else "less than 1 %"
    return (
        f"{count(breaks, 'graph break')} {'takes' if breaks == 1 else 'take'} {share} of each call"
    )


def _unmeasured(handle: Handle, is_compiled: bool) -> Verdict:
    if is_compiled:
        return UNMEASURED
    if handle.building is not None:
        return Verdict(UNKNOWN, "not measured yet", "it is being compiled")
    if handle.given_up is not None:
        return Verdict(PLAIN, "runs as plain Python", handle.given_up.why)
    entries = handle.dispatcher.entries
    if not entries:
        return UNMEASURED
    outcome = entries[0].notes.outcome
    why = "" if isinstance(outcome, Compiled) else outcome.why
    return Verdict(PLAIN, "runs as plain Python", why)


def _why_slow(handle: Handle, measured: Measured) -> str:
    """Return why it is not faster: graph breaks, short calls, or kernels as fast as torch's."""
    outside = measured.outside
    cost = _cost_of_breaks(handle, measured)
    if cost and outside is not None and outside > _MUCH * measured.compiled:
        return cost
    if outside is None and (breaks := breaks_of(handle)):
        verb = "copies" if breaks == 1 else "copy"
        return f"{count(breaks, 'graph break')} {verb} results back to Python"
    if measured.eager < _SHORT:
        return "its calls are so short that entering compiled code takes what the kernels save"
    return "torch's own kernels take as long"


def paid_after(records: list[CompileRecord], measured: Measured | None) -> int | None:
    """Return the number of calls that save the compile time; None if unknown or never."""
    saved = 0.0 if measured is None else measured.eager - measured.compiled
    seconds = sum(record.seconds for record in records)
    return int(seconds / saved) + 1 if saved > 0 else None


def payback(handle: Handle, verdict: Verdict, measured: Measured | None) -> str:
    """Return `pays back after 3 calls`, `paid back after 3 calls`, or why that is not known."""
    after = paid_after(list(handle.journal), measured)
    if verdict.tone in (SLOWER, PLAIN):
        return "never pays back"
    if after is None:
        return "pays back: not known yet" if measured is None else "never pays back"
    verb = "paid" if handle.ledger.calls >= after else "pays"
    return f"{verb} back after {count(after, 'call')}"


def shown_name(name: str) -> str:
    """Return the name of a function; the top level of a notebook cell is `this cell`."""
    return "this cell" if name == RUN_NAME else name


def compiled_in(seconds: float, hits: int) -> str:
    """Return `compiled in 0.15 s (2 kernels from disk)`."""
    cached = f" ({count(hits, 'kernel')} from disk)" if hits else ""
    return f"compiled in {duration(seconds)}{cached}"
