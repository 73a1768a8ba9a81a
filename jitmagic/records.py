"""Records every compile for diagnostics, as Outcome, StageRecord, CompileRecord and Journal.

Every stage runs in a Recording, which times it. When the compile ends, the Recording becomes a
frozen CompileRecord in the journal. Diagnostics and notebook read it; no call depends on it. A
record holds the results of the stages (frozen data), never user tensors or entries. Each of
`watchers` is called when a stage begins and ends; the progress line is one.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from .budget import check
from .errors import UserLine
from .figures import count, duration, speed
from .lazy_dataclass import dataclass, field, replace

__all__ = [
    "AT_LIMIT",
    "BUILDING",
    "COMPILED",
    "FOUND",
    "JOINS",
    "USERS_BACKEND",
    "USERS_PASS",
    "CompileRecord",
    "Compiled",
    "Difference",
    "Eager",
    "Failed",
    "Journal",
    "LazyPayload",
    "Measured",
    "Missed",
    "Occasion",
    "Outcome",
    "PendingBuild",
    "Postponed",
    "Recording",
    "RunningStage",
    "StageRecord",
    "TookTooLong",
    "watchers",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds the median seconds of `calls` interleaved calls of a variant and of eager, backward
    included. It is the source of every speed in a report.

    outside: median seconds of a compiled call in which no compiled graph runs: Python at graph
        breaks, guards, and entering compiled code; None if unknown, as on a GPU
    """

    compiled: float
    eager: float
    calls: int
    outside: float | None = None

    @property
    def speed(self) -> str:
        """Return `3.1x faster than eager`, `as fast as eager` or `slower`."""
        words = speed(self.compiled, self.eager)
        return "slower" if " slower " in words else words

    @property
    def times(self) -> str:
        """Return `0.41 ms instead of 1.27 ms, median of 40 interleaved calls`."""
        both = f"{duration(self.compiled)} instead of {duration(self.eager)}"
        return f"{both}, median of {count(2 * self.calls, 'interleaved call')}"

    def __str__(self) -> str:
        return f"{self.speed} ({self.times})"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Says that calls which pass the guards run compiled code."""

    def __str__(self) -> str:
        return "compiled"


@dataclass(frozen=True, slots=True)
class Eager:
    """Says that calls run as plain Python, and why; `where` is the user's line that caused it."""

    why: str
    where: UserLine | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"eager: {self.why}"


_SETUP_REPORTED: set[str] = set()


@dataclass(frozen=True, slots=True)
class Failed:
    """Says that a stage raised. Text only: an exception would keep frames, and user tensors."""

    error: str  # "ZeroDivisionError: division by zero"
    stage: str = ""
    traceback: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: BaseException, stage: str = "") -> Failed:
        """Return the record of an exception."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(text, stage, "".join(traceback.format_exception(error)))

    @property
    def is_of_setup(self) -> bool:
        """Return whether the compiler could not be imported: no function can be compiled."""
        return self.stage == "import"

    def is_new(self, reported: set[str], name: str) -> bool:
        """Return whether to report it now: once for each name, a failed set-up once per process."""
        seen, key = (_SETUP_REPORTED, "") if self.is_of_setup else (reported, name)
        is_new = key not in seen
        seen.add(key)
        return is_new

    @property
    def why(self) -> str:
        """Return the error as one clause."""
        stage = f" (stage {self.stage})" if self.stage else ""
        return f"compiling it failed with {self.error}{stage}"

    def report(self, what: str, instead: str) -> str:
        """Return the warning: `what` could not be compiled, and what happens `instead`."""
        if self.is_of_setup:
            return f"{self.error}\n  jitmagic.report() collects what to report about it"
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
    """Says that a compile was abandoned after options.compile_seconds; `stage` took longest."""

    @classmethod
    def after(cls, seconds: float, stages: Iterable[StageRecord]) -> TookTooLong:
        """Return the record of a compile that was limited to `seconds`, from its stages so far."""
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
class Postponed:
    """Says that the compile would take longer than its calls are known to be worth."""


@dataclass(frozen=True, slots=True)
class PendingBuild:
    """Says that the compile, or the build of its kernels alone, goes on in the background.

    finish: makes the entry on the calling thread, None if the compile has to start over, as it does
        if `finish` itself is None
    call: what the compile was begun for, once it is known
    """

    wait: Callable[[float | None], bool]  # waits at most that long; returns whether it is done
    stages: list[StageRecord]  # those of the compile, and once it has ended of the build
    finish: Callable[[], Any] | None = None
    call: tuple[Any, ...] = ()

    @property
    def building(self) -> tuple[StageRecord, ...]:
        """Return the stages of the build, for the record of the compile that then loads the
        kernels.
        """
        return tuple(stage for stage in self.stages if stage.stage == BUILDING)


Outcome = Compiled | Eager | Failed
COMPILED = Compiled()
_OF_THE_CALL = ("import", "trace", "emit")  # stages that never leave the calling thread
BUILDING = "load"  # the stage in which kernels are built in the background
FOUND = "find"  # the stage that looks for an entry that another process has left on disk
USERS_BACKEND = "backend"  # the stage in which a callable given as backend= runs
JOINS = "join collectives"  # ends the name of a stage, whose result is a `Joining`
USERS_PASS = "pass "  # begins the name of a stage in which a registered pass runs
AT_LIMIT = Eager(
    "its recompile limit is reached (one more variant is tried whenever such calls have doubled)"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Says why the guards of a variant rejected a call: `what` differs, the line that relied on it,
    and an edit that avoids the difference ("" if none is known).
    """

    what: str  # "x.shape is (3, 4), was (2, 4)"
    where: UserLine | None = None
    edit: str = ""
    source: Hashable = field(default=None, compare=False)  # what differs

    def __str__(self) -> str:
        return self.what


Missed = tuple[tuple[int, Difference], ...]  # (variant number, why it does not fit)


@dataclass(frozen=True, slots=True)
class Occasion:
    """Describes the call that caused a compile: the user's line that made it, and why each existing
    variant rejected it.
    """

    called_from: UserLine | None = None
    missed: Missed = ()  # the most recently used variant first
    at: float = 0.0  # seconds since the epoch


class LazyPayload:
    """Holds a payload for diagnostics, which is built when it is first read."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Any:
        return self._make()


def _result(kept: Any) -> Any:
    return kept.made if isinstance(kept, LazyPayload) else kept


@dataclass(frozen=True, slots=True)
class StageRecord:
    """Records one stage of a compile: its name, wall time in seconds, and its result."""

    stage: str
    seconds: float
    kept: Any

    @property
    def result(self) -> Any:
        """Return the stage's result."""
        return _result(self.kept)


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """Records one compile of a frame, resume function or backward: its stages and its outcome."""

    name: str
    stages: tuple[StageRecord, ...]
    outcome: Outcome
    kernels: int = 0
    cache_hits: int = 0  # kernels that came out of the disk cache
    measured: Measured | None = None  # set once calls were timed in turns with eager
    frame: int = 0  # Handle.serial of its handle
    number: int = 0  # variant number, from 1 on; a backward has its forward's
    occasion: Occasion = Occasion()
    asked: tuple[Any, ...] = ()  # what was learnt by trying (symbols/probe.py)

    @property
    def seconds(self) -> float:
        """Return the wall time of all stages, in seconds."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def loaded(self) -> float | None:
        """Return when another process compiled it (seconds since the epoch); None: this one did."""
        header = self.result(FOUND)
        return header["at"] if isinstance(header, dict) else None

    def result(self, stage: str) -> Any:
        """Return the result of the last stage of that name, or None."""
        return next((s.result for s in reversed(self.stages) if s.stage == stage), None)


@dataclass(eq=False, slots=True)
class RunningStage:
    """Represents a stage that is running."""

    stage: str
    kept: Any = None
    detail: str = ""  # how far a long stage is, for the progress line

    @property
    def result(self) -> Any:
        """Return the result so far."""
        return _result(self.kept)

    def keep(self, result: T) -> T:
        """Store the stage's result and return it."""
        self.kept = result
        return result

    def say(self, detail: str) -> None:
        """Set how far the stage is, which the progress line reads."""
        self.detail = detail


@dataclass(eq=False, slots=True)
class Recording:
    """Represents a running compile: stages write to it, until `end` adds a record to the
    journal.
    """

    name: str
    journal: Journal
    frame: int = 0
    number: int = 0
    occasion: Occasion = Occasion()
    reported: set[str] = field(default_factory=set)  # messages shown once; shared by the family
    title: str = ""  # the name in profiles: "step (model.py:12)"
    later: list[Any] = field(default_factory=list)  # weak references to lazy backwards
    kernels: int = 0
    cache_hits: int = 0
    asked: list[Any] = field(default_factory=list)  # what was learnt by trying
    wanted: list[Any] | None = None  # to build in the background; None: build in this compile
    affordable: float = float("inf")  # seconds that the stages after the trace may take
    known_cost: float = 0.0  # seconds that other variants took in an earlier process
    leaves_thread: bool = False  # the stages after the trace run in the background
    bucket: int | None = None  # bytes of gradients that are reduced at once during the backward
    notes_numbers: bool = False  # the trace only finds the numbers that the next call may change
    stages: list[StageRecord] = field(default_factory=list)
    failed_in: str = ""  # the innermost stage that the last error came from

    @property
    def extension_raised(self) -> bool:
        """Return whether a callable given as backend= or a registered pass raised."""
        return self.failed_in == USERS_BACKEND or self.failed_in.startswith(USERS_PASS)

    @property
    def ran_passes(self) -> bool:
        """Return whether registered passes ran on graphs of this compile."""
        return any(stage.stage.startswith(USERS_PASS) for stage in self.stages)

    @contextmanager
    def stage(self, name: str) -> Iterator[RunningStage]:
        """Time a stage and store its record, also when it raises."""
        where = "in the background" if self.leaves_thread and name not in _OF_THE_CALL else ""
        stage, self.failed_in = RunningStage(name, detail=where), ""
        started = time.perf_counter()
        try:
            check()
            for watch in watchers:
                watch(self, stage, True)
            yield stage
        except BaseException:  # an interrupt too: it is raised again below
            self.failed_in = self.failed_in or name
            raise
        finally:
            seconds = time.perf_counter() - started
            self.stages.append(StageRecord(name, seconds, stage.kept))
            for watch in watchers:
                watch(self, stage, False)

    def end(self, outcome: Outcome) -> CompileRecord:
        """Add the record to the journal and return it."""
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
            asked=tuple(self.asked),
        )
        self.journal.records.append(record)
        return record

    def for_later(self) -> Recording:
        """Return an empty recording for the backward, which is compiled at its first use."""
        later = Recording(self.name, self.journal, self.frame, self.number)
        later.reported, later.title, later.bucket = self.reported, self.title, self.bucket
        return later


Watcher = Callable[[Recording, RunningStage, bool], None]
watchers: list[Watcher] = []
"""Called as watch(recording, stage, begins) on the compiling thread."""


@dataclass(eq=False, slots=True)
class Journal:
    """Lists the compiles of one family, in the order in which they ended."""

    records: list[CompileRecord] = field(default_factory=list)

    def amend(
        self, record: CompileRecord, measured: Measured | None, outcome: Outcome
    ) -> CompileRecord:
        """Replace a record by one with the measurements made since; return the new record."""
        amended = replace(record, measured=measured, outcome=outcome)
        for at, known in enumerate(self.records):
            if known is record:
                self.records[at] = amended
        return amended

    def __iter__(self) -> Iterator[CompileRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
