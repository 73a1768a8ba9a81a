"""Runs nodes of a graph under construction on the call's own inputs, each node at most once.

Comes in: a node whose value is wanted while the trace goes on. Goes out: that value. The run keeps
the values of the nodes that it has run, so that all questions of a trace cost together what one
run of the graph costs; a GraphModule for each question made the trace quadratic (20 iterations of
LBFGS: 98 questions, 7.0 s with them).

Nodes run in the order of the graph, but only those that a question needs. A node that an earlier
question left out may read memory that a node after it has written by now: the run starts over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.nested import map_nodes
from ....graph.node_meta import changes_mode, specs_in
from ....graph.operators.autocast import preserving_autocast
from ....guards.read import read_source
from ....spec import TensorSpec
from ....symbols.size import Size, hint_of
from ...result import GraphInput

__all__ = ["PartialRun"]

_MOST_NODES = 4096  # of one question
_MOST_ELEMENTS = 1 << 24  # of the results that are kept


class PartialRun:
    """The values so far. `value_of` returns None where the run may not, or cannot, give one."""

    def __init__(self) -> None:
        self._clear()
        self._draws: list[Node] = []  # of the graph, in order, like these:
        self._modes: list[Node] = []  # nodes that set the grad mode or autocast
        self._scanned: Node | None = None

    def _clear(self) -> None:
        self._values: dict[Node, Any] = {}
        self._elements = 0  # in them
        self._generator: torch.Tensor | None = None  # the state after the draws so far

    def value_of(
        self,
        wanted: Node,
        graph: GraphBuilder,
        inputs: Mapping[Node, GraphInput],
        snapshot: Any,
    ) -> Any:
        """The tensor that a node is at the end of the graph so far."""
        self._scan(graph)
        nodes = self._needed(wanted, graph)
        if self._is_late(nodes, graph) or self._elements + _elements(nodes) > _MOST_ELEMENTS:
            self._clear()
            nodes = self._needed(wanted, graph)
        if not _is_cheap(nodes) or any(n in inputs and inputs[n].is_drawn for n in nodes):
            return None
        try:
            self._run(nodes, graph, inputs, snapshot)
        except Exception:  # eager's to raise, or a graph that runs only as a whole
            self._clear()
            return None
        return self._values[wanted]

    def _scan(self, graph: GraphBuilder) -> None:
        """Note the draws and modes among the nodes that have been added."""
        nodes = graph.graph.nodes
        node = next(iter(nodes), None) if self._scanned is None else self._scanned.next
        while node is not None and node.op != "root":
            if changes_mode(node):
                self._modes.append(node)
            if node.meta.get("random"):
                self._draws.append(node)
            self._scanned, node = node, node.next

    def _needed(self, wanted: Node, graph: GraphBuilder) -> list[Node]:
        """Return what has to run, in order: what a node is computed by, including the nodes that
        write to that before it. Draws move the generator on for those after them.
        """
        needed, waiting = set[Node](), [wanted, *graph.writes.to(wanted)]
        while waiting:
            node = waiting.pop()
            if node in self._values or node in needed:
                continue
            needed.add(node)
            read = node.all_input_nodes
            waiting += read
            waiting += (w for one in read for w in graph.writes.to(one) if w < node)
            if node.meta.get("random"):
                waiting += (draw for draw in self._draws if draw < node)
        return sorted(needed)

    def _is_late(self, nodes: Iterable[Node], graph: GraphBuilder) -> bool:
        """Return whether a node would read what a node after it has written."""
        values = self._values
        return any(
            node < writer
            for node in nodes
            for one in node.all_input_nodes
            for writer in graph.writes.to(one)
            if writer in values
        )

    def _run(
        self,
        nodes: list[Node],
        graph: GraphBuilder,
        inputs: Mapping[Node, GraphInput],
        snapshot: Any,
    ) -> None:
        values = self._values
        with (
            torch.random.fork_rng(devices=()),
            torch.set_grad_enabled(graph.entry_modes[0]),
            preserving_autocast(),
        ):
            if self._generator is not None:
                torch.set_rng_state(self._generator)
            for node in self._with_modes(nodes):
                if node.op == "placeholder":
                    values[node] = _input(inputs[node], snapshot)
                else:
                    values[node] = _called(node, values)
            if any(node.meta.get("random") for node in nodes):
                self._generator = torch.get_rng_state()
        self._elements += _elements(nodes)

    def _with_modes(self, nodes: list[Node]) -> Iterator[Node]:
        """The nodes, and before each the ones that set the modes in which it runs."""
        modes = iter(self._modes)
        mode = next(modes, None)
        for node in nodes:
            while mode is not None and mode < node:
                yield mode
                mode = next(modes, None)
            yield node


def _called(node: Node, values: Mapping[Node, Any]) -> Any:
    args, kwargs = map_nodes((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    raise NotImplementedError(node.op)


def _input(entry: GraphInput, snapshot: Any) -> torch.Tensor:
    """Return a copy with memory of its own, which the graph may write to."""
    value: Any = read_source(entry.source, snapshot)
    if entry.is_scalar:
        return torch.tensor(value, dtype=entry.spec.dtype)
    tensor: torch.Tensor = value.detach().clone(memory_format=torch.preserve_format)
    return tensor.requires_grad_(entry.spec.requires_grad)


def _is_cheap(nodes: list[Node]) -> bool:
    """And on the CPU alone: a GPU would be waited for."""
    if len(nodes) > _MOST_NODES or _elements(nodes) > _MOST_ELEMENTS:
        return False
    return all(spec.device.type == "cpu" for node in nodes for spec in specs_in(node))


def _elements(nodes: list[Node]) -> int:
    return sum(_size(spec) for node in nodes for spec in specs_in(node))


def _size(spec: TensorSpec) -> int:
    known = [s for s in spec.shape if not isinstance(s, Size) or s.context.has_hints([s.expr])]
    return math.prod(map(hint_of, known))
