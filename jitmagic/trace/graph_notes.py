"""What the tracer alone knows of a graph under construction: GraphNotes, beside its GraphBuilder.

Comes in: a graph's inputs with where their values are read, and values with the nodes that they
have. Goes out: the same, asked by node. The machine holds the notes of the graph that calls go to
(`Machine.notes`); a graph inside a graph (region.py) has notes of its own. What one module alone
keeps for a graph is of a class of that module (`GraphNotes.of`): notes know no kind of value, which
all know the machine.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol, TypeVar

import torch
from torch.fx import GraphModule, Node

from ..graph.builder import GraphBuilder
from ..guards.source import Source
from ..spec import TensorSpec
from .result import FromSource, GraphInput, InputKind

__all__ = ["GraphNotes", "Owner"]

T = TypeVar("T")


class Owner(Protocol):
    """The tensor that a node stands for: a TensorValue (trace/values/tensors/tensor.py)."""

    node: Any  # the newest one, or a LostNode

    @property
    def live(self) -> torch.Tensor | None:
        """The object, if it existed before the call."""

    @property
    def source(self) -> Source | None:
        """Where that is read."""

    @property
    def meta(self) -> torch.Tensor:
        """What it is like at this point of the program."""

    def describe(self) -> str:
        """For people."""


class GraphNotes:
    """`outer`: of the graph around this one."""

    def __init__(self, graph: GraphBuilder, outer: GraphNotes | None = None) -> None:
        self.graph = graph
        self.outer = outer
        self.inputs: dict[Node, GraphInput] = {}  # of the root graph: what its placeholders are
        self.owners: dict[Node, Owner] = {}  # one tensor is one value, whatever node it is read by
        self.marks: set[str] = set()  # what holds for the whole graph, or was arranged for it once
        self._own: dict[type, Any] = {}

    @property
    def root(self) -> GraphNotes:
        """Of the graph that the program's own tensors are inputs of."""
        return self if self.outer is None else self.outer.root

    def of(self, kind: type[T]) -> T:
        """What the module of that class keeps for this graph; empty at first."""
        if kind not in self._own:
            self._own[kind] = kind()
        own: T = self._own[kind]
        return own

    def add_input(
        self, name: str, source: Source, spec: TensorSpec, kind: InputKind = InputKind.TENSOR
    ) -> Node:
        """A new placeholder, fed with what the source reads."""
        node = self.graph.placeholder(name, spec)
        self.inputs[node] = GraphInput(node.name, source, spec, kind)
        return node

    def finish(self, name: str) -> tuple[GraphModule, tuple[GraphInput, ...]]:
        """The finished graph, and what its placeholders are."""
        graph, left = self.graph.finish(name)
        return graph, tuple(self.inputs[node] for node in left)

    def casts_behind(self, written: Container[Source] = ()) -> tuple[FromSource, ...]:
        """The leaves whose casts autocast keeps behind the call: those that the graph writes to,
        and of `written`, which what follows a break writes to, those that it casts.
        """

        def is_kept(node: Node, source: Source) -> bool:
            casts, leaf = self.graph.cast_cache, node.meta["val"]
            return casts.outlives_frame(leaf) or (source in written and casts.has(leaf))

        inputs = self.inputs.items()
        return tuple(FromSource(one.source) for node, one in inputs if is_kept(node, one.source))

    def live(self, node: Node) -> torch.Tensor | None:
        """The object that a node stands for, if it existed before the call."""
        owner = self.owners.get(node)
        return None if owner is None else owner.live

    def live_inputs(self) -> list[torch.Tensor]:
        """The tensors that the graph is given."""
        return [live for node in self.graph.inputs if (live := self.live(node)) is not None]
