"""How a kernel may be written otherwise than the heuristics write it: plain data for the renderers.

A renderer takes one Config per kernel; one at its defaults leaves every choice to the heuristics
and gives the text that they give. `candidates` of a renderer lists the few that are worth measuring
for one nest, the default first; runtime/tune.py measures them and never learns what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Config

__all__ = ["CppConfig", "TritonConfig"]


@dataclass(frozen=True, slots=True)
class CppConfig(Config):
    """`threads`: "one", "all", or as the work says; `registers`: vectors that one step of a lane
    loop works on (independent accumulators of a reduction), 0: as the body says.
    """

    threads: str = "auto"
    registers: int = 0


@dataclass(frozen=True, slots=True)
class TritonConfig(Config):
    """Zeros leave it to the heuristics. `points`: elements of one program of a pointwise nest;
    `side`: of a transposing tile; `rows`: of one program of a reduction; `step`: elements of one
    step of a looped reduction, where a longer extent is never held whole; `stages`: loads in flight
    in such a loop.
    """

    warps: int = 0
    points: int = 0
    side: int = 0
    rows: int = 0
    step: int = 0
    stages: int = 0
