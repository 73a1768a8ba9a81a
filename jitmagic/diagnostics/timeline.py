"""timeline: runs a call under torch's profiler, and shows when it computes and communicates.

Input: a callable and its arguments. Output: a `Timeline`: for each rank the spans in which kernels
and operators ran, those in which collectives ran, and the share of the second that the first hide.
On a GPU the spans are those of its kernels, NCCL's being communication; on the CPU those of
operators, and the backend's own for its collectives (gloo's threads). Compiled and eager code are
measured alike.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from ..errors import JitmagicError
from ..lazy_dataclass import dataclass
from ..ranks.board import Board, board
from .explanation.pictures import Picture
from .explanation.svg import COLOURS, Drawing
from .words import HINT, Question, Readable, count, duration, refuse_arguments

__all__ = ["RankTimeline", "Span", "Timeline", "timeline"]

_WIDE, _ROW = 960.0, 22.0
_LEAST = 2  # pixels from the begin of a box to that of the next
_PATIENCE = 60.0  # seconds that another rank may be late
_BACKENDS = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:")  # prefixes of their profiler events
_COLLECTIVES = ("c10d::", "_c10d_functional::", "jitmagic::wait")  # starts of them, and waits
_NODES = ("autograd::", "torch::autograd::")
_asked = itertools.count()


class Span(NamedTuple):
    """Names what ran between two times, in seconds since the call began."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """Holds one rank's call: its duration in seconds, and what ran."""

    rank: int
    seconds: float
    compute: tuple[Span, ...]
    communication: tuple[Span, ...]

    @property
    def communicating(self) -> float:
        """Return the seconds in which at least one collective ran."""
        return _length(_merged(self.communication))

    @property
    def hidden(self) -> float | None:
        """Return the share of `communicating` in which kernels or operators ran too, 0 to 1; None
        without communication.
        """
        whole = self.communicating
        return _overlap(self.compute, self.communication) / whole if whole else None


@dataclass(frozen=True, slots=True, repr=False)
class Timeline(Readable):
    """Holds the timelines of one call, by rank."""

    name: str
    ranks: tuple[RankTimeline, ...]

    def styled_lines(self) -> list[tuple[str, str]]:
        lines = [(f"{self.name}: {duration(max(one.seconds for one in self.ranks))}", "")]
        lines += [(f"  {_line(one)}", "") for one in self.ranks]
        return [*lines, ("  .picture() draws it", HINT)]

    def picture(self) -> Picture:
        """Draw two rows for each rank: computing above, communicating below."""
        title = f"compute and communication: {self.name}"
        drawing = Drawing()
        drawing.text(8, 18, title, strong=True)
        longest = max(one.seconds for one in self.ranks)
        for one in self.ranks:
            _draw(drawing, one, _WIDE / (longest or 1.0))
        return Picture(title, drawing.finished(title))


def timeline(
    target: Callable[..., Any], /, *arguments: object, all_ranks: bool = False
) -> Question[Timeline]:
    """`timeline(fn)(*args)`: call `fn(*args)` once under a profiler; report when it computed and
    communicated, and how much of the communication was hidden behind computation.

    `fn` is any callable, such as a training step; call it a few times first, so that nothing is
    compiled meanwhile. With `all_ranks` every rank of the process group has to call this, and each
    gets the timelines of all. Raises JitmagicError if a rank does not answer in 60 s.
    """
    refuse_arguments("timeline", arguments)
    name = getattr(target, "__name__", type(target).__name__)

    def answer(*args: object, **kwargs: object) -> Timeline:
        notes = board()
        own = _measured(target, args, kwargs, notes.rank if notes else 0)
        if notes is None or not all_ranks:
            return Timeline(name, (own,))
        return Timeline(name, _gathered(notes, own))

    return Question("timeline", target, answer)


# -- measuring -------------------------------------------------------------------------------------


def _measured(
    target: Callable[..., Any], args: Any, kwargs: dict[str, Any], rank: int
) -> RankTimeline:
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    if on_gpu:
        torch.cuda.synchronize()
    with profile(activities=activities) as found:
        target(*args, **kwargs)
        if on_gpu:
            torch.cuda.synchronize()
    events = found.events() or []
    begin = min((one.time_range.start for one in events), default=0.0)
    end = max((one.time_range.end for one in events), default=0.0)
    seconds = (end - begin) * 1e-6
    kernels = [one for one in events if one.device_type != DeviceType.CPU]
    rows = _kernels_of(kernels, begin) if kernels else _operators_of(events, begin)
    return RankTimeline(rank, seconds, *map(_in_order, rows))


def _kernels_of(events: Iterable[Any], begin: float) -> tuple[list[Span], list[Span]]:
    """Return the spans of other kernels and of NCCL's on a GPU."""
    rows: tuple[list[Span], list[Span]] = ([], [])
    for one in events:
        if not one.is_user_annotation:  # which the profiler repeats over the kernels within
            rows["nccl" in one.name.lower()].append(_span(one, begin))
    return rows


def _operators_of(events: Sequence[Any], begin: float) -> tuple[list[Span], list[Span]]:
    """Return the spans in which threads computed, and those of collectives, on the CPU."""
    communication = [_span(one, begin) for one in events if one.name.startswith(_BACKENDS)]
    waits: dict[int, list[Span]] = {}
    for one in events:
        if one.name.startswith(_COLLECTIVES):
            waits.setdefault(one.thread, []).append(_span(one, begin))
    compute = []
    for one in events:
        if _computes(one.name) and not one.is_user_annotation:
            compute += _outside(_span(one, begin), _in_order(waits.get(one.thread, ())))
    return compute, communication


def _computes(name: str) -> bool:
    """Return whether an event on the CPU is an operator or a kernel: no call, within which Python
    runs, no node of autograd, and no start of a collective or wait for it.
    """
    is_kernel = name.startswith(("kernel ", "backward kernel "))
    is_operator = "::" in name and not name.startswith((*_COLLECTIVES, *_NODES))
    return is_kernel or is_operator


def _outside(span: Span, waits: Iterable[Span]) -> list[Span]:
    """Return what is left of a span without the waits, which are in order."""
    left, start = [], span.start
    for wait in waits:
        if wait.end > start and wait.start < span.end:
            left.append(Span(span.name, start, wait.start))
            start = wait.end
    return [one for one in (*left, Span(span.name, start, span.end)) if one.end > one.start]


def _span(event: Any, begin: float) -> Span:
    start, end = event.time_range.start, event.time_range.end  # in microseconds
    return Span(event.name, (start - begin) * 1e-6, (end - begin) * 1e-6)


def _in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda span: span.start))


def _gathered(notes: Board, own: RankTimeline) -> tuple[RankTimeline, ...]:
    """Exchange timelines through the store of the process group, in the order of the calls."""
    place = f"timeline/{next(_asked)}"
    data = [own.seconds, own.compute, own.communication]
    notes.put(f"{place}/{own.rank}", json.dumps(data).encode())
    ends = time.monotonic() + _PATIENCE
    found = []
    for rank in range(notes.size):
        if (sent := notes.awaited(f"{place}/{rank}", ends)) is None:
            raise JitmagicError(
                f"rank {rank} sent no timeline within {_PATIENCE:.0f} s\n"
                "  hint: with all_ranks=True every rank calls jitmagic.timeline(fn)(*args)"
            )
        seconds, *spans = json.loads(sent.decode())
        compute, communication = (tuple(Span(*one) for one in row) for row in spans)
        found.append(RankTimeline(rank, seconds, compute, communication))
    return tuple(found)


# -- intervals -------------------------------------------------------------------------------------


def _merged(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return the union of spans, which are in order, as intervals that do not touch."""
    merged: list[tuple[float, float]] = []
    for span in spans:
        if merged and span.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.start, span.end))
    return merged


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


def _overlap(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Return the length of the intersection of two unions."""
    both = sorted([*left, *right], key=lambda span: span.start)
    found = _length(_merged(left)) + _length(_merged(right)) - _length(_merged(both))
    return max(found, 0.0)  # not -1e-18


# -- showing ---------------------------------------------------------------------------------------


def _line(one: RankTimeline) -> str:
    computes = f"computes {duration(_length(_merged(one.compute)))}"
    if one.hidden is None:
        return f"rank {one.rank}: {computes}, no communication"
    collectives = count(len(one.communication), "collective")
    return (
        f"rank {one.rank}: {computes}, communicates {duration(one.communicating)} "
        f"in {collectives}, {one.hidden:.0%} of it hidden"
    )


def _drawn(spans: Sequence[Span], least: float) -> Iterator[Span]:
    """Yield the spans, with those that begin less than `least` seconds after another in one: a
    picture of the 1,551 kernels of a step has 1,551 boxes in 670 KB otherwise.
    """
    for _, near in itertools.groupby(spans, key=lambda span: span.start // least):
        first, *others = near
        name = f"{first.name} and {len(others)} more" if others else first.name
        yield first._replace(name=name, end=max(span.end for span in (first, *others)))


def _draw(drawing: Drawing, one: RankTimeline, scale: float) -> None:
    top = drawing.height + 20
    drawing.text(8, top, _line(one))
    rows = ((one.compute, COLOURS[0]), (one.communication, COLOURS[5]))
    for number, (spans, colour) in enumerate(rows):
        y = top + 8 + number * (_ROW + 3)
        for span in _drawn(spans, _LEAST / scale):
            length = span.end - span.start
            tooltip = f"{span.name}: {duration(length)}"
            drawing.box(8 + span.start * scale, y, length * scale, _ROW, colour, tooltip)
