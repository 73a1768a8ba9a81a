"""Graphs nested in a node of another graph: backwards, functions under torch.func transforms, and
branches and loop bodies of control-flow operators.

Calls are recorded as in any graph. Arguments that are nodes of an outer graph are captured. The
result is the graph, the values that feed its inputs, and the captured nodes. Writes to tensors from
outside, and assertions, are graph breaks.

Whether a backward records gradients (create_graph) is known only when it runs. It is traced as if
it did; code that depends on that, and random draws, are graph breaks. A function under a transform
is traced on plain tensors, as one functorch level sees them; code that observes levels is a break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule, Node

from ..compat.modes import switch_grad_mode
from ..errors import UserLine
from ..graph.autocast_mode import OFF, Autocast
from ..graph.builder import GraphBuilder, map_nodes
from ..graph.node_meta import device_of, spec_on
from ..graph.symbolic.size_nodes import READ, READ_AT_LEVEL, SizeNodes
from ..graph.target_names import Target
from ..graph.targets.control_flow import Body
from ..graph.targets.regions import FunctionCall, Region, back_to_entry_mode
from ..graph.wrappers.wrapping import is_wrapper
from ..spec import TensorSpec
from .breaks import BackwardRefused, BodyRefused, GraphBreak, TransformRefused
from .graph_notes import EscapedNode, GraphNotes

__all__ = ["BodyBuilder", "RegionBuilder", "TransformBuilder"]


class _InnerBuilder(GraphBuilder):
    """Builds an inner graph; `outer`: the notes of the graph around it, `name`: for messages."""

    def __init__(
        self,
        outer: GraphNotes,
        name: str,
        grad_enabled: bool,
        read: tuple[object, object] = READ,
    ) -> None:
        around = outer.graph
        super().__init__(grad_enabled, around.step)
        self.is_transformed, self.is_frame = around.is_transformed, False
        self.autocast = OFF
        self.entry_modes = self._emitted_modes = grad_enabled, OFF
        # Shared, because a write in this graph is one to the memory that the graph around it
        # captured.
        self.writes = around.writes
        self.unknown_strides = set(around.unknown_strides)
        self.notes = GraphNotes(self, outer)
        self._outer, self._name = outer, name
        self._feeds: dict[Node, tuple[str, int]] = {}  # group of values, index in it
        self._captured: dict[Node, Node] = {}
        self.sizes = SizeNodes(self.graph, read, around.sizes, self.local)

    @property
    def root(self) -> GraphBuilder:
        return self._outer.graph.root

    # -- what comes from outside -----------------------------------------------------------------

    def feed(self, group: str, index: int, spec: TensorSpec) -> Node:
        """Add an input for the value `index` of a group."""
        node = self.placeholder(f"{group}_{index}", spec)
        self._feeds[node] = group, index
        return node

    def is_fed(self, node: Node, group: str) -> bool:
        """Return whether the node is an input here, for a value of that group."""
        return self._feeds.get(node, (None, 0))[0] == group

    def local(self, node: Node) -> Node:
        """Return the node of this graph for a node of a graph around it, which is captured."""
        if node.graph is self.graph:
            return node
        if node not in self._captured:
            outer = self._outer.graph.local(node)
            if is_wrapper(outer.meta["val"]):
                self._refuse("it reads a tensor subclass")
            spec = spec_on(outer.meta["val"], device_of(outer))
            captured = self._captured[node] = self.feed("captured", len(self._captured), spec)
            if (owner := self._outer.owners.get(outer)) is not None:
                self.notes.owners[captured] = owner
            if node in self.unknown_strides:
                self.unknown_strides.add(captured)
        return self._captured[node]

    def closed(
        self, name: str
    ) -> tuple[GraphModule, tuple[tuple[str, int], ...], tuple[Node, ...]]:
        """Return the finished graph, the feeds of its inputs, and the captured outer nodes."""
        graph, left = self.finish(name)
        feeds = [self._feeds[node] for node in left]
        outer = list(self._captured)
        used = [index for group, index in feeds if group == "captured"]
        renamed = tuple(
            (group, used.index(index) if group == "captured" else index) for group, index in feeds
        )
        return graph, renamed, tuple(self._outer.graph.local(outer[index]) for index in used)

    # -- calls -----------------------------------------------------------------------------------

    def call(
        self,
        target: Target,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
        lines: tuple[UserLine, ...] = (),
    ) -> object:
        here, named = map_nodes((tuple(args), dict(kwargs or {})), self.local)
        return super().call(target, here, named, lines)

    def set_autocast(self, mode: Autocast) -> None:
        if mode != self.autocast:
            self._refuse("it runs under autocast")

    def assert_false(self, wrong: Node, lines: tuple[UserLine, ...] = ()) -> None:
        self._refuse("it asserts something about data")

    def _note_writes(self, writer: Node, written: tuple[Node, ...]) -> None:
        if any(map(self.inputs_sharing, written)):
            self._refuse("it writes to a tensor from outside of it")

    def _refuse(self, why: str) -> NoReturn:
        raise NotImplementedError


class RegionBuilder(_InnerBuilder):
    """Builds the backward of an autograd function."""

    def __init__(self, outer: GraphNotes, name: str) -> None:
        super().__init__(outer, name, grad_enabled=True)
        self.modes_vary = True

    def flags_vary(self, node: Node) -> bool:
        """Return whether `requires_grad` of the tensor is known only when the backward runs."""
        # Without create_graph the engine runs the backward without grad mode, and gradients have no
        # history.
        is_made = node not in self.inputs or self.is_fed(node, "gradient")
        return node.graph is self.graph and is_made

    def close(self, returned: Sequence[Node | None]) -> tuple[Region, tuple[Node, ...]]:
        """Return the finished region, and the captured outer nodes in order."""
        outputs = tuple(
            None if node is None else self.output(self.local(node)) for node in returned
        )
        graph, feeds, captured = self.closed(f"{self._name}Backward")
        return Region(graph, feeds, outputs), captured

    def call_function(
        self, call: FunctionCall, args: object, lines: tuple[UserLine, ...], follow: Any
    ) -> tuple[Node | None, ...]:
        return super().call_function(call, map_nodes(args, self.local), lines, follow)

    def call_transform(self, *args: object) -> tuple[object, ...]:
        self._refuse("it transforms a function")

    def set_grad_enabled(self, mode: bool) -> None:
        self._refuse("it sets the grad mode")

    def _note_writes(self, writer: Node, written: tuple[Node, ...]) -> None:
        """Allow writes to gradients: the engine passes the tensor itself to the backward."""
        shared = [input for node in written for input in self.inputs_sharing(node)]
        if not all(self.is_fed(node, "gradient") for node in shared):
            super()._note_writes(writer, written)

    def _emit_modes(self, modes: tuple[bool, Autocast], lines: tuple[UserLine, ...]) -> None:
        """Emit switches of grad mode: a forward called from a backward runs without gradients."""
        if modes[0] != self._emitted_modes[0]:
            back = modes[0]
            target = back_to_entry_mode if back else switch_grad_mode
            node = self.graph.call_function(target, () if back else (False,))
            node.meta.update(val=None, spec=None, lines=lines)
        self._emitted_modes = modes

    def _note_draw(self) -> None:
        # When and how often the backward runs is not known, and so neither the place of its draws
        # among those of the program.
        self._refuse("it draws random numbers")

    def _refuse(self, why: str) -> NoReturn:
        raise GraphBreak(BackwardRefused.of(name=self._name, why=why))


class _FunctionBuilder(_InnerBuilder):
    """Abstract base of the builders of functions that make no autograd nodes of their own."""

    def call_transform(
        self,
        target: object,
        args: tuple[object, ...],
        device: torch.device | Sequence[torch.device],
        lines: tuple[UserLine, ...],
    ) -> tuple[object, ...]:
        return super().call_transform(target, map_nodes(args, self.local), device, lines)

    def call_function(self, *args: object) -> tuple[Node | None, ...]:
        self._refuse("it calls an autograd function")

    def differentiate(self, *args: object) -> tuple[Node | None, ...]:
        self._refuse("it calls torch.autograd.grad")

    def require_grad(self, node: Node, lines: tuple[UserLine, ...]) -> Node:
        self._refuse("it makes a leaf of the autograd graph")


class TransformBuilder(_FunctionBuilder):
    """Builds the function under a transform."""

    def __init__(self, outer: GraphNotes, name: str, grad_enabled: bool) -> None:
        super().__init__(outer, name, grad_enabled, READ_AT_LEVEL)
        self.is_transformed = True
        if outer.graph.default_dtype is not None:
            self._refuse("the frame has changed the default dtype")
        # Maps nodes of the root graph for floats that vary to their Values.
        around = outer.graph
        self.numbers: dict[Node, Any] = (
            around.numbers if isinstance(around, TransformBuilder) else {}
        )

    def flags_vary(self, node: Node) -> bool:
        """Return whether `requires_grad` may differ at the level from that around it."""
        return not self.is_fed(node, "given") and bool(node.meta["val"].requires_grad)

    def local(self, node: Node) -> Node:
        """Capture functions too, which a transform around this one returned (vjp)."""
        if node.graph is self.graph or isinstance(node.meta["val"], torch.Tensor):
            return super().local(node)
        if node not in self._captured:
            like = TensorSpec((), (), torch.float32, torch.device("cpu"))
            captured = self._captured[node] = self.feed("captured", len(self._captured), like)
            captured.meta["val"] = node.meta["val"]
        return self._captured[node]

    def close(self, answer: Sequence[Node]) -> tuple[Any, ...]:
        """Return the result of `closed`, and the output index of each returned node."""
        outputs = [self.output(self.local(node)) for node in answer]
        closed = *self.closed(self._name), outputs
        for node, owner in self.notes.owners.items():
            if owner.node is node:
                owner.node = EscapedNode(self._name, self.step())
        return closed

    @property
    def draws(self) -> bool:
        return any(node.meta.get("random") for node in self.graph.nodes)

    def _refuse(self, why: str) -> NoReturn:
        raise GraphBreak(TransformRefused.of(name=self._name, why=why))


class BodyBuilder(_FunctionBuilder):
    """Builds a branch or loop body of a control-flow operator. It runs as part of the program, in
    the modes of the call: it may draw random numbers, set the grad mode and autocast.
    """

    def __init__(self, outer: GraphNotes, name: str) -> None:
        super().__init__(outer, name, outer.graph.grad_enabled)
        if outer.graph.modes_vary or outer.graph.is_transformed:
            self._refuse("it runs in a backward or under a transform of torch.func")
        if outer.graph.default_dtype is not None:
            self._refuse("the frame has changed the default dtype")
        self.autocast = outer.graph.autocast
        self.has_cast = self.autocast != OFF
        self.entry_modes = self._emitted_modes = self.grad_enabled, self.autocast

    def close(self, answer: Sequence[Node]) -> tuple[Body, tuple[Node, ...]]:
        """Return the finished graph, and the captured outer nodes in order."""
        nodes = [self.local(node) for node in answer]
        returns = tuple(map(self.output, nodes))
        leaves = self.reachable_leaves([node for node in nodes if self.has_history(node)])
        inputs = {self._captured[outer]: outer for outer in self._captured}
        reached = {inputs[leaf] for leaf in leaves if leaf in inputs}
        graph, feeds, captured = self.closed(self._name)
        local = self._outer.graph.local
        places = (captured.index(local(outer)) for outer in reached)
        return Body(graph, feeds, returns, tuple(sorted(places))), captured

    def set_autocast(self, mode: Autocast) -> None:
        GraphBuilder.set_autocast(self, mode)  # the body ends in the modes of the call

    def _refuse(self, why: str) -> NoReturn:
        raise GraphBreak(BodyRefused.of(name=self._name, why=why))
