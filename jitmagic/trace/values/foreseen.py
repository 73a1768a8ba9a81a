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

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...graph.autocast import modes_kept
from ...graph.builder import GraphBuilder
from ...graph.node_meta import changes_mode, specs_in
from ...graph.python_numbers import in_python
from ...guards.read import read_source
from ...spec import TensorSpec
from ...symbols.size import Size, hint_of
from ..graph_notes import GraphNotes
from ..result import GraphInput

__all__ = ["number_in_this_call", "tensor_in_this_call"]

_MOST_NODES = 4096
_MOST_ELEMENTS = 1 << 24  # computed once more than the call needs, at each branch of a compile


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
    foresees, filename = machine.foresees, machine.frame.program.code.co_filename
    if foresees is None or graph is not graph.root or not foresees(filename):
        return None
    nodes = _needed(graph, node)
    if not _is_cheap(nodes):
        return None
    inputs = [one for one in nodes if one.op == "placeholder"]
    if any(notes.inputs[one].is_drawn for one in inputs):
        return None
    try:
        values = [_input(notes.inputs[one], machine.snapshot) for one in inputs]
        return _computed(nodes, node, values, graph.entry_modes[0])
    except Exception:  # eager's to raise, or a graph that runs only as a whole
        return None


def _needed(graph: GraphBuilder, wanted: Node) -> list[Node]:
    """What a node is computed by, who writes to that included. Of a draw it is everything: those
    before it move the generator on.
    """
    nodes = list(graph.graph.nodes)
    needed, found = {wanted}, list[Node]()
    for node in reversed(nodes):
        if node in needed or changes_mode(node):
            if node.meta.get("random"):
                return nodes
            found.append(node)
            needed.update(node.all_input_nodes)
            needed.update(w for one in node.all_input_nodes for w in graph.writes.to(one))
    return found[::-1]


def _is_cheap(nodes: Sequence[Node]) -> bool:
    """And on the CPU alone: a GPU would be waited for."""
    if len(nodes) > _MOST_NODES:
        return False
    specs = [spec for node in nodes for spec in specs_in(node)]
    if any(spec.device.type != "cpu" for spec in specs):
        return False
    return sum(map(_elements, specs)) <= _MOST_ELEMENTS


def _elements(spec: TensorSpec) -> int:
    known = [s for s in spec.shape if not isinstance(s, Size) or s.context.has_hints([s.expr])]
    return math.prod(map(hint_of, known))


def _input(entry: GraphInput, snapshot: Any) -> torch.Tensor:
    """Of memory of its own: the graph may write to it."""
    value: Any = read_source(entry.source, snapshot)
    if entry.is_scalar:
        return torch.tensor(value, dtype=entry.spec.dtype)
    tensor: torch.Tensor = value.detach().clone(memory_format=torch.preserve_format)
    return tensor.requires_grad_(entry.spec.requires_grad)


def _computed(
    nodes: Sequence[Node], wanted: Node, values: Sequence[torch.Tensor], grad_enabled: bool
) -> torch.Tensor:
    graph, copies = Graph(), dict[Node, Node]()
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output((copies[wanted],))
    gm = in_python(GraphModule(torch.nn.Module(), graph))
    with torch.random.fork_rng(devices=()), torch.set_grad_enabled(grad_enabled):
        made: torch.Tensor
        (made,) = modes_kept(gm, gm.forward)(*values)
    return made
