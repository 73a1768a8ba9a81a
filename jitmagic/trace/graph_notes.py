"""GraphNotes: facts about a graph under construction that only the tracer needs.

They map inputs to the sources that they are read from, and nodes to the tensors that they
represent. `Machine.notes` belongs to the graph that calls are recorded in; a graph inside a graph
(region.py) has notes of its own. A module that needs state per graph defines a class for it and
gets its instance from `GraphNotes.of`. This module must not import that class: modules of Values
import the machine, which imports this one.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NoReturn, TypeVar

import torch
from torch.fx import GraphModule, Node

from ..graph.builder import GraphBuilder
from ..guards.source import Source
from ..protocols import Protocol
from ..spec import TensorSpec
from .breaks import GraphBreak, TransformRefused
from .result import FromSource, GraphInput, InputKind

__all__ = ["EscapedNode", "GraphNotes", "Owner"]

T = TypeVar("T")


class Owner(Protocol):
    """The tensor that a node represents: a TensorValue (trace/values/tensors/tensor.py)."""

    node: Any  # the newest node of the tensor, or an EscapedNode

    @property
    def live(self) -> torch.Tensor | None:
        """The live tensor, if it existed before the call."""

    @property
    def source(self) -> Source | None:
        """The source that the live tensor is read from."""

    @property
    def meta(self) -> torch.Tensor:
        """The meta tensor at this point of the program."""

    def describe(self) -> str:
        """Return a short text for messages."""


class GraphNotes:
    """Notes about one graph; `outer`: the notes of the graph around it."""

    def __init__(self, graph: GraphBuilder, outer: GraphNotes | None = None) -> None:
        self.graph = graph
        self.outer = outer
        self.inputs: dict[Node, GraphInput] = {}  # the placeholders of the root graph
        self.owners: dict[Node, Owner] = {}  # a tensor is one value even if several nodes read it
        self.marks: set[str] = set()  # facts about the whole graph, and setup that was done once
        self._own: dict[type, Any] = {}

    @property
    def root(self) -> GraphNotes:
        """The notes of the outermost graph, whose inputs are the program's own tensors."""
        return self if self.outer is None else self.outer.root

    def of(self, kind: type[T]) -> T:
        """Return this graph's instance of `kind`; makes it with `kind()` at first use."""
        if kind not in self._own:
            self._own[kind] = kind()
        own: T = self._own[kind]
        return own

    def add_input(
        self, name: str, source: Source, spec: TensorSpec, kind: InputKind = InputKind.TENSOR
    ) -> Node:
        """Add a placeholder for the tensor that `source` reads."""
        node = self.graph.placeholder(name, spec)
        self.inputs[node] = GraphInput(node.name, source, spec, kind)
        return node

    def finish(self, name: str) -> tuple[GraphModule, tuple[GraphInput, ...]]:
        """Return the finished graph and the inputs of its placeholders."""
        graph, left = self.graph.finish(name)
        return graph, tuple(self.inputs[node] for node in left)

    def cached_casts(self, written: Container[Source] = ()) -> tuple[FromSource, ...]:
        """Return the leaves whose casts must be in torch's autocast cache after the call.

        They are the cast leaves that the graph writes to, or that code after the break writes to
        (`written`).
        """

        def is_kept(node: Node, source: Source) -> bool:
            casts, leaf = self.graph.cast_cache, node.meta["val"]
            return casts.outlives_frame(leaf) or (source in written and casts.has(leaf))

        inputs = self.inputs.items()
        return tuple(FromSource(one.source) for node, one in inputs if is_kept(node, one.source))

    def live(self, node: Node) -> torch.Tensor | None:
        """Return the object that a node represents, if it existed before the call."""
        owner = self.owners.get(node)
        return None if owner is None else owner.live

    def live_inputs(self) -> list[torch.Tensor]:
        """Return the tensors that are inputs of the graph."""
        return [live for node in self.graph.inputs if (live := self.live(node)) is not None]


class EscapedNode:
    """Replaces the node of a tensor made under a torch.func transform that has returned.

    In eager such a tensor is wrapped for a functorch level that has ended, which no graph can
    represent. Using the node is a graph break, and so is returning the tensor from the frame.
    """

    def __init__(self, name: str, created_at_step: int) -> None:
        self.reason = TransformRefused.of(name=name, why="a tensor that it made escapes")
        self.created_at_step = created_at_step  # the root-frame instruction to break at

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphBreak(self.reason)
