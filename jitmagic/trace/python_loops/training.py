"""Training loops: decides when a loop whose iterations compute gradients is left to Python.

The graph breaks (TrainingLoop) at the head of a loop that contains backward(), so that one compiled
iteration serves all. Unrolled, 60 steps of Adam took 2 s to trace and 9 s to compile, and every
iteration had kernels of its own. A loop with few iterations left is unrolled into one graph.
"""

from __future__ import annotations

import inspect

from ..breaks import GraphBreak, TrainingLoop
from ..state import Frame
from ..values.base import Lazy, Machine
from ..values.containers.iterators import IteratorValue

__all__ = ["check_iteration", "iterations_left", "note_gradients"]

_MOST_NODES = 300  # nodes of the graph if the remaining iterations were unrolled


def note_gradients(machine: Machine) -> None:
    """Record that backward() runs at the current instruction of each frame."""
    for frame in machine.frames:
        frame.gradients.add(frame.at)


def check_iteration(machine: Machine, frame: Frame) -> None:
    """Break before the next iteration of a training loop; called at each backward jump.

    The root frame breaks at the loop's head and resumes there. An inlined frame cannot: the graph
    breaks before its call, and its function is compiled with a handle of its own.
    """
    if not frame.gradients or not _may_break(machine, frame):
        return
    nodes = len(machine.graph.graph.nodes)
    # At the first jump back this counts the nodes before the loop too. Overestimated, a short loop
    # is left to Python: slower by its breaks, but correct.
    of_round = nodes - frame.nodes_at.get(frame.next, 0)
    frame.nodes_at[frame.next] = nodes
    left = iterations_left(frame, frame.next)
    if not any(frame.next <= at <= frame.at for at in frame.gradients):
        return
    if left is not None and left * of_round <= _MOST_NODES:
        return
    # Only the root can resume within a loop. The callee becomes a root of its own.
    if frame is not machine.root:
        raise GraphBreak(TrainingLoop.of())
    frame.rolls_at = frame.next


def _may_break(machine: Machine, frame: Frame) -> bool:
    """Return whether the trace may end here: not in an inner graph, nor in a generator."""
    if machine.options.fullgraph or machine.graph is not machine.graph.root:
        return False
    return not frame.program.body.flags & inspect.CO_GENERATOR


def iterations_left(frame: Frame, head: int) -> int | None:
    """Return the remaining iterations of the `for` loop that the frame is at; None: unknown."""
    if frame.program.body.instructions[head].op != "FOR_ITER" or not frame.stack:
        return None
    top = frame.stack[-1]
    iterator = top.real if isinstance(top, Lazy) else top
    return iterator.items_left() if isinstance(iterator, IteratorValue) else None
