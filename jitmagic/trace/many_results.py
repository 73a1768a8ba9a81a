"""Calls that give more tensors than a graph should hold: a long column cut into its rows.

Comes in: what a call gave. Goes out: a graph break, after which the frame is left to plain Python:
a graph of what follows would guard each of the tensors.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..options import Options
from .breaks import GraphBreak, TooManyResults

__all__ = ["refuse_many"]

# A node and its uses compile in 1 to 2 ms, an instruction is followed in 50 µs.
_INSTRUCTIONS_PER_RESULT = 20


class _Tracer(Protocol):
    options: Options


def refuse_many(machine: _Tracer, name: str, result: Any) -> None:
    """Break if `result`, of the operation `name`, counts for more than `unroll_limit`."""
    count = len(result) if isinstance(result, tuple | list) else 0
    if count * _INSTRUCTIONS_PER_RESULT > machine.options.unroll_limit:
        raise GraphBreak(TooManyResults.of(name=name, count=count))
