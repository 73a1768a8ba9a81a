"""Decides whether eager may run a frame from its start after its graph has raised.

The inputs must then be as they were before the call. Compiled kernels and ATen graphs write to
inputs only when nothing can raise any more (schedule/deferred_writes.py). A graph that runs in the
program's order (in partitions) may have written to some by then, so these are copied before each
run.
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

    Writes are undone only for nodes that are known to raise on data; any other error is passed on.
    Undoing draws costs each call a copy of the generator's state.
    """
    if not trace.mutated and not trace.draws:
        return True
    return any(map(may_raise, trace.graph.graph.nodes))


def can_assert(written: Iterable[TensorSpec]) -> bool:
    """Return whether a graph with such writes may assert, with eager running the call if it fails.

    Not on a GPU: a failed device-side assertion makes CUDA unusable in the process.
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
    # Nothing raises after the last such node, so later writes never have to be undone.
    while nodes and not may_raise(nodes[-1]):
        nodes.pop()
    written = {storage_of(one) for node in nodes for one in node.meta.get("mutates", ())}
    inputs = trace.graph.graph.find_nodes(op="placeholder")
    return tuple(n for n in trace.mutated if storage_of(inputs[n]) in written)


def may_raise(node: Node) -> bool:
    """Return whether the node raises depending on data."""
    return may_raise_on_data(node) or has_data_sizes(node)
