"""Defines the result of scheduling, the input of code generation.

A Schedule is a LoopProgram whose nests have been fused (same IR, see loops/ir.py), in execution
order, with the memory plan and the sentence for every fusion made or refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..lazy_dataclass import dataclass, field
from ..loops.ir import LoopProgram

__all__ = ["Decision", "Schedule"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Records one fusion that was considered, the decision and its reason."""

    producer: str
    consumer: str
    fused: bool
    reason: str

    def __str__(self) -> str:
        verdict = "fused" if self.fused else "not fused"
        return f"{verdict}: {self.producer} -> {self.consumer}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Holds a fused program and its memory plan. `pool` maps temporaries to byte offsets in one
    workspace of `pool_bytes`; a temporary that is not in it is allocated separately, or reuses the
    memory of the dying buffer in `reused`. `last_use` maps every buffer to the step after which it
    is dead.
    """

    program: LoopProgram
    pool: Mapping[str, int]
    pool_bytes: int
    last_use: Mapping[str, int]
    reused: Mapping[str, str]
    decisions: tuple[Decision, ...] = field(default=())
