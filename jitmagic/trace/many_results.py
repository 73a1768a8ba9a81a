"""Breaks at calls that return too many tensors for a graph, such as `unbind` of a long tensor.

Plain Python runs the rest of the frame too: a graph after the break would guard each tensor.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..options import Options
from .breaks import GraphBreak, TooManyResults

__all__ = ["refuse_many"]

# A node and its uses take 1 to 2 ms to compile, an instruction 50 µs to trace.
_INSTRUCTIONS_PER_RESULT = 20


class _Tracer(Protocol):
    options: Options


def refuse_many(machine: _Tracer, name: str, result: Any) -> None:
    """Break if `result`, of the operation `name`, has too many tensors for `unroll_limit`."""
    count = len(result) if isinstance(result, tuple | list) else 0
    if count * _INSTRUCTIONS_PER_RESULT > machine.options.unroll_limit:
        raise GraphBreak(TooManyResults.of(name=name, count=count))
