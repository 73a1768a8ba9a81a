"""Defines config records, which override the heuristics of a renderer, as plain data.

A renderer takes one Config per kernel; a field with its default leaves that choice to the
heuristics. `candidates` of a renderer lists the few that are worth measuring for one nest;
runtime/tune.py measures them without interpreting them.
"""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .plan import Config

__all__ = ["AttentionConfig", "CppConfig", "TritonConfig"]


@dataclass(frozen=True, slots=True)
class CppConfig(Config):
    """Overrides the heuristics for a C++ kernel. `threads`: "one", "all", or "auto" (by the amount
    of work); `registers`: vectors per step of a lane loop (independent accumulators of a
    reduction), 0: by the loop body.
    """

    threads: str = "auto"
    registers: int = 0


@dataclass(frozen=True, slots=True)
class TritonConfig(Config):
    """Overrides the heuristics for a Triton kernel; 0 leaves the choice to them. `points`: elements
    per program of a pointwise nest; `side`: of a transposing tile; `rows`: rows per program of a
    reduction; `step`: elements per step of a looped reduction, which then never holds a longer
    extent whole; `stages`: loads in flight in such a loop.
    """

    warps: int = 0
    points: int = 0
    side: int = 0
    rows: int = 0
    step: int = 0
    stages: int = 0


@dataclass(frozen=True, slots=True)
class AttentionConfig(Config):
    """Overrides the tiles of a Triton kernel of flex_attention; 0 leaves the choice to the
    heuristics. `rows`: queries per tile; `columns`: keys per tile; `stages`: tiles in flight.
    """

    rows: int = 0
    columns: int = 0
    warps: int = 0
    stages: int = 0
