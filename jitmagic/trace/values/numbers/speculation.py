"""Speculates on data-dependent values in library code: assumes the values of this call.

Input: the number in a one-element tensor, needed by a branch or as a constant. Output: its value in
this call, computed by running the graph so far on the call's inputs. The trace assumes the same
value in later calls, and the graph asserts that (assertions.py). A call with another value runs in
eager, and after frequent mispredictions the frame is traced without speculation (frame/ledger.py).
If the value cannot be computed, the read is a graph break.

A PartialRun caches the values of nodes, so that all queries of a trace together cost one run of the
graph. Nodes run in the order of the graph, but only those that a query needs. A node that earlier
queries skipped may read memory that a later node has already overwritten; then the run starts over.

Speculation is limited to code of installed packages, which the user cannot edit: whether a padding
mask is all true, whether a statistic has seen a batch. In user code, the message of the graph break
says what to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from ....graph.autocast_mode import preserving_autocast
from ....graph.builder import GraphBuilder
from ....graph.nested import map_nodes
from ....graph.node_meta import changes_mode, specs_in
from ....guards.read import read_source
from ....spec import TensorSpec
from ....symbols.size import Size, hint_of
from ...graph_notes import GraphNotes
from ...result import BreakReason, GraphInput
from ..base import Builder, CannotRebuild, Machine

__all__ = ["number_in_this_call", "require_restart", "tensor_in_this_call"]

_MOST_NODES = 4096  # that one query runs
# The largest total size of the cached results. Only nodes that a query needs are run: with the
# whole graph, Longformer on 512 tokens exceeded the limit and had 10 breaks.
_MOST_ELEMENTS = 1 << 24


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
    speculates_in, filename = machine.assumed.speculates_in, machine.frame.program.code.co_filename
    if speculates_in is None or not graph.is_frame or not speculates_in(filename):
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
    created_at_step: int = machine.step

    def check(builder: Builder) -> None:
        if not can_restart(node.meta["spec"] for node in graph.mutated_inputs):
            raise CannotRebuild(f"{what} in a frame that writes", created_at_step, reason)

    machine.at_exit(check)


class PartialRun:
    """Caches the values computed so far. `value_of` returns None if running is unsafe or fails."""

    def __init__(self) -> None:
        self._clear()
        # Nodes of the graph in order: those that draw random numbers, and those that set the grad
        # mode or autocast.
        self._draws: list[Node] = []
        self._modes: list[Node] = []
        self._scanned: Node | None = None

    def _clear(self) -> None:
        self._values: dict[Node, Any] = {}
        self._elements = 0  # total number of elements in `_values`
        self._generator: torch.Tensor | None = None  # the state after the draws so far

    def value_of(
        self,
        wanted: Node,
        graph: GraphBuilder,
        inputs: Mapping[Node, GraphInput],
        snapshot: object,
    ) -> Any:
        """Return the tensor that a node holds at the end of the graph so far, or None."""
        self._scan(graph)
        nodes = self._needed(wanted, graph)
        if self._is_late(nodes, graph) or self._elements + _elements(nodes) > _MOST_ELEMENTS:
            self._clear()
            nodes = self._needed(wanted, graph)
        if not _is_cheap(nodes) or any(n in inputs and inputs[n].is_drawn for n in nodes):
            return None
        try:
            self._run(nodes, graph, inputs, snapshot)
        except Exception:  # eager will raise it, or the graph runs only as a whole
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
        """Return the nodes to run, in order: the producers of a node and earlier writes to them.

        A random draw needs all earlier draws, which advance the generator.
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
        """Return whether a node would read memory that a later node has already written."""
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
        snapshot: object,
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
        """Yield the nodes, each after the nodes that set the modes in which it runs."""
        modes = iter(self._modes)
        mode = next(modes, None)
        for node in nodes:
            while mode is not None and mode < node:
                yield mode
                mode = next(modes, None)
            yield node


def _called(node: Node, values: Mapping[Node, object]) -> Any:
    args, kwargs = map_nodes((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    raise NotImplementedError(node.op)


def _input(entry: GraphInput, snapshot: Any) -> torch.Tensor:
    """Return a copy with memory of its own, which the graph may write to."""
    value: Any = read_source(entry.source, snapshot)
    if entry.is_scalar:  # Python's ints and floats are 0-dim inputs
        return torch.tensor(value, dtype=entry.spec.dtype)
    tensor: torch.Tensor = value.detach().clone(memory_format=torch.preserve_format)
    return tensor.requires_grad_(entry.spec.requires_grad)


def _is_cheap(nodes: list[Node]) -> bool:
    """Return whether the nodes are few, small and on the CPU; a GPU would have to be waited for."""
    if len(nodes) > _MOST_NODES or _elements(nodes) > _MOST_ELEMENTS:
        return False
    return all(spec.device.type == "cpu" for node in nodes for spec in specs_in(node))


def _elements(nodes: list[Node]) -> int:
    return sum(_size(spec) for node in nodes for spec in specs_in(node))


def _size(spec: TensorSpec) -> int:
    known = [s for s in spec.shape if not isinstance(s, Size) or s.context.has_hints([s.expr])]
    return math.prod(map(hint_of, known))
