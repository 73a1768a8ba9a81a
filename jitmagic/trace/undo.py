"""Whether eager may run a frame from its start when its graph has raised.

Comes in: a Trace. Goes out: yes or no; what it wrote to its inputs is then undone. The writes of a
compiled graph have no order that the user knows: when it raises, all, some or none are done. They
are undone where data may make it raise and what it writes is small; else its error is passed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..graph.raising import has_data_sizes, may_raise_on_data
from ..spec import TensorSpec
from ..symbols.size import hint_of
from .result import Trace

__all__ = ["can_be_undone", "can_start_over"]

_MOST = 1 << 20  # bytes that each call may copy for the sake of an error that hardly ever comes


def can_start_over(trace: Trace) -> bool:
    """Whether what the graph writes to is as it was then: `trace.mutated` is copied before each run
    and put back. True where it writes to nothing.
    Draws are taken back, which costs each call as much as many draws.
    """
    if not trace.mutated and not trace.draws:
        return True
    if not any(may_raise_on_data(n) or has_data_sizes(n) for n in trace.graph.graph.nodes):
        return False
    return can_be_undone(trace.inputs[n].spec for n in trace.mutated)


def can_be_undone(written: Iterable[TensorSpec]) -> bool:
    """Whether a graph that raises may write to such inputs and leave no trace."""
    specs = list(written)
    if any(spec.device.type != "cpu" for spec in specs):
        return False  # there an index out of range ends the process's use of the device
    return sum(spec.dtype.itemsize * math.prod(map(hint_of, spec.shape)) for spec in specs) <= _MOST
