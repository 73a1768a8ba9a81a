"""Whether eager may run a frame from its start when its graph has raised.

Comes in: a Trace. Goes out: yes or no, and which inputs have to be copied before each run for it.
Kernels write to inputs once nothing can raise any more (schedule/deferred_writes.py), as ATen
graphs do, so they copy none. What runs in the program's order has written some of them by then.
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

_MOST = 1 << 20  # bytes that are copied in each call rather than have the graph end


def can_start_over(trace: Trace) -> bool:
    """Whether the inputs are as they were when the graph raises, or put back. What is not known to
    raise may have written anything: its error is passed on.
    Draws are taken back, which costs each call as much as many draws.
    """
    if not trace.mutated and not trace.draws:
        return True
    return any(map(may_raise, trace.graph.graph.nodes))


def can_assert(written: Iterable[TensorSpec]) -> bool:
    """Whether an assertion of a graph with such writes may hand the call to eager when it fails. On
    a GPU it ends the process's use of the device.
    """
    return all(spec.device.type == "cpu" for spec in written)


def can_be_copied(written: Iterable[TensorSpec]) -> bool:
    """Whether such inputs may be copied before each run, where a graph runs in pieces."""
    specs = list(written)
    size = sum(spec.dtype.itemsize * math.prod(map(hint_of, spec.shape)) for spec in specs)
    return can_assert(specs) and size <= _MOST


def written_before_raising(trace: Trace) -> tuple[int, ...]:
    """The inputs that a run in the program's order has written to when something raises."""
    nodes: list[Node] = list(trace.graph.graph.nodes)
    while nodes and not may_raise(nodes[-1]):
        nodes.pop()
    written = {storage_of(one) for node in nodes for one in node.meta.get("mutates", ())}
    inputs = trace.graph.graph.find_nodes(op="placeholder")
    return tuple(n for n in trace.mutated if storage_of(inputs[n]) in written)


def may_raise(node: Node) -> bool:
    """Whether data decide that running it raises."""
    return may_raise_on_data(node) or has_data_sizes(node)
