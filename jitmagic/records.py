"""StageRecord, CompileRecord and Journal: history as a returned value.

`pipeline` writes one StageRecord per stage it runs; diagnostics and notebook read them; no stage
knows of them. A record keeps the stage's result object (small, frozen data), never user tensors.
`watchers` are told when a stage begins and ends: the progress line is one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

__all__ = ["CompileRecord", "Journal", "Later", "StageRecord", "watchers"]

T = TypeVar("T")


@dataclass(slots=True)
class StageRecord:
    """One stage of one compile: its name, wall time in seconds, and what came out."""

    stage: str
    seconds: float = 0.0
    result: Any = None
    detail: str = ""  # how far a long stage is, for the progress line

    def keep(self, result: T) -> T:
        """Remember what the stage made, and hand it on."""
        self.result = result
        return result

    def say(self, detail: str) -> None:
        """How far the stage is; the progress line looks at it while it waits."""
        self.detail = detail


class Later(Protocol):
    """Something that is compiled when it is first called for."""

    @property
    def is_made(self) -> bool:
        """Whether it has been compiled."""
        ...

    def __call__(self) -> object:
        """Compile it now, unless that has been done."""
        ...


@dataclass(slots=True)
class CompileRecord:
    """One frame (or resume function) compiled: the stages in order, and how it ended.

    `later`: what is compiled when it is first needed (the backward), held weakly: with the entry
    that would use it, it goes.
    """

    name: str
    stages: list[StageRecord] = field(default_factory=list)
    outcome: str = "running"  # "compiled" | "eager: why" | "failed: why"
    kernels: int = 0
    cache_hits: int = 0  # kernels that came out of the disk cache
    later: list[weakref.ref[Later]] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # what the user has been told; the journal's

    @property
    def seconds(self) -> float:
        """Wall time of all stages so far."""
        return sum(stage.seconds for stage in self.stages)

    def result(self, stage: str) -> Any:
        """The result of the last stage of that name, or None."""
        return next((s.result for s in reversed(self.stages) if s.stage == stage), None)

    def waiting(self) -> list[Later]:
        """What has not been compiled yet and can still be needed."""
        alive = [one for ref in self.later if (one := ref()) is not None]
        return [one for one in alive if not one.is_made]

    @contextmanager
    def stage(self, name: str) -> Iterator[StageRecord]:
        """Time a stage and keep its record, also when it raises."""
        stage = StageRecord(name)
        self.stages.append(stage)
        started = time.perf_counter()
        try:
            for watch in watchers:
                watch(self, stage, True)
            yield stage
        finally:
            stage.seconds = time.perf_counter() - started
            for watch in watchers:
                watch(self, stage, False)


Watcher = Callable[[CompileRecord, StageRecord, bool], None]
watchers: list[Watcher] = []
"""Called as watch(record, stage, begins) on the compiling thread."""


@dataclass(slots=True)
class Journal:
    """All compiles of one handle, oldest first."""

    records: list[CompileRecord] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def open(self, name: str) -> CompileRecord:
        """Start the record of one compile."""
        record = CompileRecord(name, told=self.told)
        self.records.append(record)
        return record

    def __iter__(self) -> Iterator[CompileRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
