"""StageRecord and Journal: history as a returned value.

`pipeline` appends one StageRecord per stage it runs; diagnostics and notebook read them; no stage
knows of them. A record keeps the stage's result object (small, frozen data), never user tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CompileRecord", "Journal", "StageRecord"]


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of one compile: its name, wall time in seconds, and what came out."""

    stage: str
    seconds: float
    result: Any = None


@dataclass(slots=True)
class CompileRecord:
    """One frame (or resume function) compiled: the stages in order, and how it ended."""

    name: str
    stages: list[StageRecord] = field(default_factory=list)
    outcome: str = "running"  # "compiled" | "eager: why" | "failed: why"
    cache_hits: int = 0  # kernels found in the disk cache

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def result(self, stage: str) -> Any:
        """The result of the last stage of that name, or None."""
        return next((s.result for s in reversed(self.stages) if s.stage == stage), None)


@dataclass(slots=True)
class Journal:
    """All compiles of one handle, oldest first."""

    records: list[CompileRecord] = field(default_factory=list)

    def open(self, name: str) -> CompileRecord:
        record = CompileRecord(name)
        self.records.append(record)
        return record

    def __iter__(self) -> Iterator[CompileRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
