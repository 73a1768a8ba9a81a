"""What data decide in library code, foreseen: what they decide in this call.

Comes in: the one number in a tensor, asked for by a branch that nothing else decides, or as a value
that has to be known. Goes out: what it is in this call, computed from the call's own inputs by what
the graph has so far. It is a guess about every other call, which the graph asserts (validation.py):
where data decide otherwise eager takes the call, and where they do so often the frame is traced
without (frame/ledger.py). Nothing of a result rests on it, so whatever stands in the way just
leaves the graph break.

Only in code of installed packages, which the user cannot edit: a flag about a padding mask, the
first batch of a statistic. On a line of the user's own the break says what to do about it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...graph_notes import GraphNotes
from .partial_run import PartialRun

__all__ = ["number_in_this_call", "tensor_in_this_call"]


def number_in_this_call(machine: Any, node: Node) -> Any:
    """`tensor.item()` as this call computes it; None: it is not to be foreseen here."""
    if node.meta["val"].numel() != 1:
        return None
    found = tensor_in_this_call(machine, node)
    return None if found is None else found.item()


def tensor_in_this_call(machine: Any, node: Node) -> torch.Tensor | None:
    """What this call computes; None: it is not to be foreseen here."""
    notes: GraphNotes = machine.notes
    graph = notes.graph
    may_speculate, filename = machine.may_speculate, machine.frame.program.code.co_filename
    if may_speculate is None or graph is not graph.root or not may_speculate(filename):
        return None
    run = notes.of(PartialRun)
    found: torch.Tensor | None = run.value_of(node, graph, notes.inputs, machine.snapshot)
    return found
