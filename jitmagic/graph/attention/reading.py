"""Reads the nodes of a finished torch-level graph as values, also where the program writes to them.

In: a graph whose nodes have their meta tensors. Out: `Program.call`, the call that computes what a
node holds at a place of the program. `scores += bias` after `scores` was made is the addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ...late import late_names
from ...spec import TensorSpec
from ...symbols.size import Dimension, is_same
from ..memory import memory_of, storage_of
from ..node_meta import changes_mode, mutated_by

if TYPE_CHECKING:
    from ..symbolic.ranges import known_name
else:
    late_names(globals(), {"graph.symbolic.ranges": "known_name"})

__all__ = ["Call", "NotFusible", "Program", "all_same", "spec_of"]


class NotFusible(Exception):
    """Says why attention stays as it is written; an empty text: it is no attention."""


class Call(NamedTuple):
    """A call that computes a value. `name`: without the underscore of an in-place form."""

    name: str
    node: Node
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def given(self, *names: str) -> list[Any]:
        """Return the arguments in this order of their names, None for missing ones."""
        if len(self.args) > len(names) or not self.kwargs.keys() <= {*names}:
            raise NotFusible
        known = dict(zip(names, self.args, strict=False)) | dict(self.kwargs)
        return [known.get(name) for name in names]


class Program:
    """The nodes of a graph, with their order, their modes and the writes to their memory."""

    def __init__(self, gm: GraphModule) -> None:
        self.graph: Graph = gm.graph
        self.place: dict[Node, int] = {}
        self.mode: dict[Node, int] = {}  # changes of modes before the node
        self.shown: set[int] = set()  # storages of inputs and outputs
        self._writers: dict[int, list[Node]] = {}
        changes = 0
        for place, node in enumerate(gm.graph.nodes):
            changes += changes_mode(node)
            self.place[node], self.mode[node] = place, changes
            for written in mutated_by(node):
                for memory in memory_of(written):
                    self._writers.setdefault(memory, []).append(node)
            if node.op in ("placeholder", "get_attr"):
                self.shown |= memory_of(node)
            elif node.op == "output":
                self.shown.update(*map(memory_of, node.all_input_nodes))
        self.modes_vary = bool(changes)

    @property
    def writes(self) -> Program:
        return self

    def to(self, node: Node) -> list[Node]:
        """Return the calls that write to a tensor's storage, in the program's order."""
        memory = storage_of(node)
        return [] if memory is None else self._writers.get(memory, [])

    def writes_between(self, node: Node, first: Node, last: Node) -> list[Node]:
        """Return the calls after `first` and before `last` that write to a node's memory."""
        low, high = self.place[first], self.place[last]
        return [writer for writer in self.to(node) if low < self.place[writer] < high]

    def call(self, node: Node, reader: Node) -> Call:
        """Return the call that computes what `reader` reads in a node."""
        if node.op != "placeholder" and (writers := self.writes_between(node, node, reader)):
            made = writers[-1]
            if not (known_name(made.target).endswith("_") and _is_all_of(made.args[0], node)):
                raise NotFusible("a part of it is written to")
            node = made
        if node.op not in ("call_function", "call_method"):
            return Call("", node, (), {})
        return Call(known_name(node.target).rstrip("_"), node, node.args, node.kwargs)


def spec_of(node: object) -> TensorSpec:
    """Return the spec of a tensor node; others are part of no attention."""
    spec = node.meta.get("spec") if isinstance(node, Node) else None
    if not isinstance(spec, TensorSpec):
        raise NotFusible
    return spec


def all_same(some: tuple[Dimension, ...], others: tuple[Dimension, ...]) -> bool:
    """Return whether sizes are equal in every call."""
    return len(some) == len(others) and all(map(is_same, some, others))


def _is_all_of(target: object, node: Node) -> bool:
    """Return whether both stand for the same elements of one storage."""
    if target is node:
        return True
    if not isinstance(target, Node):
        return False
    values: list[torch.Tensor] = [target.meta["val"], node.meta["val"]]
    specs = [spec_of(target), spec_of(node)]
    return (
        all_same(specs[0].shape, specs[1].shape)
        and all_same(specs[0].stride, specs[1].stride)
        and is_same(specs[0].storage_offset, specs[1].storage_offset)
        and values[0].dtype is values[1].dtype
    )
