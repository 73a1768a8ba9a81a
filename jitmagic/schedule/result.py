"""What scheduling hands to code generation.

A Schedule is a LoopProgram whose nests have been fused (same IR, see loops/ir.py), in execution
order, with the memory plan beside it and the sentence for every fusion made or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..loops.ir import LoopProgram

__all__ = ["Decision", "Schedule"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One fusion considered: what, whether, why."""

    producer: str
    consumer: str
    fused: bool
    reason: str

    def __str__(self) -> str:
        verdict = "fused" if self.fused else "kept apart"
        return f"{verdict}: {self.producer} -> {self.consumer}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`pool` maps temporaries to byte offsets in one workspace of `pool_bytes`; a temp that is not
    in it is allocated by itself, or written over the one that `over` names, which dies there.
    `last_use` maps every buffer to the index of the step after which it is dead."""

    program: LoopProgram
    pool: Mapping[str, int]
    pool_bytes: int
    last_use: Mapping[str, int]
    over: Mapping[str, str]
    decisions: tuple[Decision, ...] = field(default=())
