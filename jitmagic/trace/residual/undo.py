"""Decides whether eager may run a frame from its start after its graph has raised.

That needs inputs as they were, possibly copied before each run. Kernels write to inputs only when
nothing can raise any more (schedule/deferred_writes.py), and so do ATen graphs, so those copy none.
Code that runs in the program's order may have written to some of them by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch.fx import Node

from ...graph.memory import storage_of
from ...graph.operators.raising import has_data_sizes, may_raise_on_data
from ...spec import TensorSpec
from ...symbols.size import hint_of
from ..result import Trace

__all__ = ["can_assert", "can_be_copied", "can_start_over", "may_raise", "written_before_raising"]

_MOST = 1 << 20  # bytes; above that the graph ends instead of copying in each call


def can_start_over(trace: Trace) -> bool:
    """Return whether the inputs are unchanged or restored when the graph raises.

    A node that is not known to raise may have written anything, so its error is passed on. Undoing
    draws costs each call a copy of the generator's state.
    """
    if not trace.mutated and not trace.draws:
        return True
    return any(map(may_raise, trace.graph.graph.nodes))


def can_assert(written: Iterable[TensorSpec]) -> bool:
    """Return whether a failing assertion of a graph with such writes may hand the call to eager.

    On a GPU a failed assertion ends the process's use of the device.
    """
    return all(spec.device.type == "cpu" for spec in written)


def can_be_copied(written: Iterable[TensorSpec]) -> bool:
    """Return whether such inputs may be copied before each run, if a graph runs in partitions."""
    specs = list(written)
    size = sum(spec.dtype.itemsize * math.prod(map(hint_of, spec.shape)) for spec in specs)
    return can_assert(specs) and size <= _MOST


def written_before_raising(trace: Trace) -> tuple[int, ...]:
    """Return the inputs that a run in program order has written to when a node raises."""
    nodes: list[Node] = list(trace.graph.graph.nodes)
    while nodes and not may_raise(nodes[-1]):
        nodes.pop()
    written = {storage_of(one) for node in nodes for one in node.meta.get("mutates", ())}
    inputs = trace.graph.graph.find_nodes(op="placeholder")
    return tuple(n for n in trace.mutated if storage_of(inputs[n]) in written)


def may_raise(node: Node) -> bool:
    """Return whether the node raises depending on data."""
    return may_raise_on_data(node) or has_data_sizes(node)
