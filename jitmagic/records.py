"""Outcome, StageRecord, CompileRecord and Journal: history for people.

Every stage runs in a Recording, which times it; when the compile ends, the Recording becomes a
frozen CompileRecord in the journal. Diagnostics and notebook read it; no call depends on it: with
the journal emptied every function behaves as before. A record keeps the results of the stages
(frozen data), never user tensors or entries. `watchers` are told when a stage begins and ends: the
progress line is one.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from .budget import check
from .errors import UserLine
from .figures import count, duration, speed

__all__ = [
    "AT_LIMIT",
    "BUILDING",
    "COMPILED",
    "USERS_BACKEND",
    "Begun",
    "CompileRecord",
    "Compiled",
    "Difference",
    "Eager",
    "Failed",
    "Journal",
    "Later",
    "Measured",
    "Missed",
    "Occasion",
    "Outcome",
    "Recording",
    "RunningStage",
    "StageRecord",
    "TookTooLong",
    "watchers",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of a variant's calls and of eager's, made in turns: seconds, backward included, of so
    many calls each. Every speed that a person reads comes from here.

    outside: seconds of a compiled call in which no compiled graph runs, the median: Python at graph
        breaks, guards, and the way into compiled code; None where they are not known, as on a GPU
    """

    compiled: float
    eager: float
    calls: int
    outside: float | None = None

    @property
    def speed(self) -> str:
        """`3.1x faster than eager`, `as fast as eager` or `slower`."""
        told = speed(self.compiled, self.eager)
        return "slower" if " slower " in told else told

    @property
    def times(self) -> str:
        """`0.41 ms instead of 1.27 ms, median of 40 interleaved calls`."""
        both = f"{duration(self.compiled)} instead of {duration(self.eager)}"
        return f"{both}, median of {count(2 * self.calls, 'interleaved call')}"

    def __str__(self) -> str:
        return f"{self.speed} ({self.times})"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Calls that pass the guards run compiled code."""

    def __str__(self) -> str:
        return "compiled"


@dataclass(frozen=True, slots=True)
class Eager:
    """Calls run as plain Python, as somebody decided: `where` is the user's line that led there."""

    why: str
    where: UserLine | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"eager: {self.why}"


@dataclass(frozen=True, slots=True)
class Failed:
    """A stage raised. Text only: an exception would keep its frames, and the user's tensors."""

    error: str  # "ZeroDivisionError: division by zero"
    stage: str = ""
    traceback: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: BaseException, stage: str = "") -> Failed:
        """What is kept of an exception."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(text, stage, "".join(traceback.format_exception(error)))

    @property
    def why(self) -> str:
        """The error as one clause."""
        stage = f" (stage {self.stage})" if self.stage else ""
        return f"compiling it failed with {self.error}{stage}"

    def report(self, what: str, instead: str) -> str:
        """The warning: `what` could not be compiled, and what happens `instead`."""
        stage = f" (stage {self.stage})" if self.stage else ""
        return (
            f"{what} could not be compiled{stage} and {instead}: {self.error}\n"
            "  jitmagic.minify(fn)(*args) makes a small script of it; the traceback is in the "
            'journal; options={"on_error": "raise"} raises it'
        )

    def __str__(self) -> str:
        return f"failed: {self.error}"


@dataclass(frozen=True, slots=True)
class TookTooLong(Failed):
    """A compile that was given up after options.compile_seconds; `stage`: the longest of it."""

    @classmethod
    def after(cls, seconds: float, stages: Iterable[StageRecord]) -> TookTooLong:
        """Return what is said of a compile that was given so many seconds."""
        spent: dict[str, float] = {}
        for one in stages:
            spent[one.stage] = spent.get(one.stage, 0.0) + one.seconds
        longest = sorted(spent, key=lambda stage: -spent[stage])[:3]
        times = ", ".join(f"{stage} {spent[stage]:.3g} s" for stage in longest)
        text = f"it took longer than {seconds:g} seconds ({times})"
        return cls(text, longest[0] if longest else "")

    @property
    def why(self) -> str:
        return f"compiling it was given up: {self.error}"

    @property
    def hint(self) -> str:
        """Return what the user can do about it."""
        return (
            'options={"compile_seconds": ...} gives it more time; tag what a long loop calls, not '
            "the loop, and less is compiled at once"
        )

    def report(self, what: str, instead: str) -> str:
        return f"{what} {instead} for calls like this one: {self.why}\n  hint: {self.hint}"

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class Begun:
    """The compile has to wait for kernels, which are being built in the background."""

    wait: Callable[[float | None], bool]  # whether they are there within so many seconds
    stages: list[StageRecord]  # of the compile, and of the building once it has ended

    @property
    def building(self) -> tuple[StageRecord, ...]:
        """What the building adds to the times of the compile that finds the kernels built."""
        return tuple(stage for stage in self.stages if stage.stage == BUILDING)


Outcome = Compiled | Eager | Failed
COMPILED = Compiled()
BUILDING = "load"  # the stage in which kernels are built in the background
USERS_BACKEND = "backend"  # the stage in which a callable given as backend= runs
AT_LIMIT = Eager(
    "its recompile limit is reached (one more variant is tried whenever such calls have doubled)"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a variant did not fit a call: `what` differs, the line that relied on it, and the edit
    that stops it ("" where none is known).
    """

    what: str  # "x.shape is (3, 4), was (2, 4)"
    where: UserLine | None = None
    edit: str = ""
    source: Hashable = field(default=None, compare=False)  # what differs

    def __str__(self) -> str:
        return self.what


Missed = tuple[tuple[int, Difference], ...]  # by number of variant why it does not fit


@dataclass(frozen=True, slots=True)
class Occasion:
    """The call that a compile was for: the user's line that made it, and by number of variant what
    kept those that there were from fitting.
    """

    called_from: UserLine | None = None
    missed: Missed = ()  # the one used last comes first
    at: float = 0.0  # seconds since the epoch


class Later:
    """What nobody but people reads, made when somebody does."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Any:
        return self._make()


def _result(kept: Any) -> Any:
    return kept.made if isinstance(kept, Later) else kept


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of one compile: its name, wall time in seconds, and what came out."""

    stage: str
    seconds: float
    kept: Any

    @property
    def result(self) -> Any:
        """What came out."""
        return _result(self.kept)


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One frame (or resume function, or backward) compiled: its stages in order, how it ended."""

    name: str
    stages: tuple[StageRecord, ...]
    outcome: Outcome
    kernels: int = 0
    cache_hits: int = 0  # kernels that came out of the disk cache
    measured: Measured | None = None  # once its first calls were timed beside eager's
    frame: int = 0  # whose it is: Handle.serial
    number: int = 0  # of that frame's variants, from 1 on; a backward has its forward's
    occasion: Occasion = Occasion()

    @property
    def seconds(self) -> float:
        """Wall time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def result(self, stage: str) -> Any:
        """The result of the last stage of that name, or None."""
        return next((s.result for s in reversed(self.stages) if s.stage == stage), None)


@dataclass(eq=False, slots=True)
class RunningStage:
    """A stage under way."""

    stage: str
    kept: Any = None
    detail: str = ""  # how far a long stage is, for the progress line

    @property
    def result(self) -> Any:
        """What came out so far."""
        return _result(self.kept)

    def keep(self, result: T) -> T:
        """Remember what the stage made, and hand it on."""
        self.kept = result
        return result

    def say(self, detail: str) -> None:
        """How far the stage is; the progress line looks at it while it waits."""
        self.detail = detail


@dataclass(eq=False, slots=True)
class Recording:
    """One compile under way: what the stages write to, until `end` puts a record in the journal."""

    name: str
    journal: Journal
    frame: int = 0
    number: int = 0
    occasion: Occasion = Occasion()
    told: set[str] = field(default_factory=set)  # what the user has been told once; the family's
    title: str = ""  # what profilers call what is compiled: "step (model.py:12)"
    later: list[Any] = field(default_factory=list)  # weakly: what is compiled at its first use
    kernels: int = 0
    cache_hits: int = 0
    wanted: list[Any] | None = None  # kernels to be built in the background; None: build them here
    stages: list[StageRecord] = field(default_factory=list)
    failed_in: str = ""  # the innermost of the stages that the last error left

    @property
    def backend_raised(self) -> bool:
        """Whether a callable given as backend= raised."""
        return self.failed_in == USERS_BACKEND

    @contextmanager
    def stage(self, name: str) -> Iterator[RunningStage]:
        """Time a stage and keep its record, also when it raises."""
        stage, self.failed_in = RunningStage(name), ""
        started = time.perf_counter()
        try:
            check()
            for watch in watchers:
                watch(self, stage, True)
            yield stage
        except BaseException:
            self.failed_in = self.failed_in or name
            raise
        finally:
            seconds = time.perf_counter() - started
            self.stages.append(StageRecord(name, seconds, stage.kept))
            for watch in watchers:
                watch(self, stage, False)

    def end(self, outcome: Outcome) -> CompileRecord:
        """Write the record."""
        stages = tuple(self.stages)
        record = CompileRecord(
            self.name,
            stages,
            outcome,
            self.kernels,
            self.cache_hits,
            frame=self.frame,
            number=self.number,
            occasion=self.occasion,
        )
        self.journal.records.append(record)
        return record

    def for_later(self) -> Recording:
        """An empty one: for the backward, which is compiled at its first use."""
        own = (self.name, self.journal, self.frame, self.number)
        return Recording(*own, told=self.told, title=self.title)


Watcher = Callable[[Recording, RunningStage, bool], None]
watchers: list[Watcher] = []
"""Called as watch(recording, stage, begins) on the compiling thread."""


@dataclass(eq=False, slots=True)
class Journal:
    """All compiles of one family, in the order in which they ended."""

    records: list[CompileRecord] = field(default_factory=list)

    def amend(
        self, record: CompileRecord, measured: Measured | None, outcome: Outcome
    ) -> CompileRecord:
        """Write down what was measured of a compile since it ended: its record from now on."""
        amended = replace(record, measured=measured, outcome=outcome)
        for at, known in enumerate(self.records):
            if known is record:
                self.records[at] = amended
        return amended

    def __iter__(self) -> Iterator[CompileRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
