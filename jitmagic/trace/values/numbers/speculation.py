"""Speculates on data-dependent values in library code: assumes the values of this call.

Input: the number in a one-element tensor, needed by a branch or as a constant. Output: its value in
this call, computed by running the graph so far on the call's inputs. The trace assumes the same
value in later calls, and the graph asserts that (validation.py). A call with another value runs in
eager, and after frequent mispredictions the frame is traced without speculation (frame/ledger.py).
If the value cannot be computed, the read is a graph break.

Speculation is limited to code of installed packages, which the user cannot edit: whether a padding
mask is all true, whether a statistic has seen a batch. In user code, the message of the graph break
says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....spec import TensorSpec
from ...graph_notes import GraphNotes
from ...result import BreakReason
from ..base import Builder, CannotRebuild, Machine
from .partial_run import PartialRun

__all__ = ["number_in_this_call", "require_restart", "tensor_in_this_call"]


def number_in_this_call(machine: Machine, node: Node) -> Any:
    """Return `tensor.item()` as this call computes it, or None without speculation."""
    if node.meta["val"].numel() != 1:
        return None
    found = tensor_in_this_call(machine, node)
    return None if found is None else found.item()


def tensor_in_this_call(machine: Machine, node: Node) -> torch.Tensor | None:
    """Return the tensor as this call computes it, or None without speculation."""
    notes: GraphNotes = machine.notes
    graph = notes.graph
    may_speculate, filename = machine.may_speculate, machine.frame.program.code.co_filename
    if may_speculate is None or graph is not graph.root or not may_speculate(filename):
        return None
    # All queries of a trace share one run: with a run per query, tracing 20 iterations of LBFGS (98
    # branches) took 7.0 s instead of 1.9 s.
    run = notes.of(PartialRun)
    found: torch.Tensor | None = run.value_of(node, graph, notes.inputs, machine.snapshot)
    return found


def require_restart(
    machine: Machine,
    graph: GraphBuilder,
    can_restart: Callable[[Iterable[TensorSpec]], bool],
    what: str,
    reason: BreakReason,
) -> None:
    """Break before this instruction unless eager can run the frame from its start when the graph
    has raised: `can_restart` of the inputs that the graph writes.
    """
    born: int = machine.step

    def check(builder: Builder) -> None:
        if not can_restart(node.meta["spec"] for node in graph.mutated_inputs):
            raise CannotRebuild(f"{what} in a frame that writes", born, reason)

    machine.at_exit(check)
