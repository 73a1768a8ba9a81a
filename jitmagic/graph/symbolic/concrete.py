"""Replaces the symbols of a graph: by ints for one size tuple, or by Sizes of another Context.

Input: a graph whose specs and arguments hold Sizes, and the values of its symbols. Output: the same
graph with these values. Nothing is called: the trace has inferred the shapes for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...lazy_dataclass import dataclass, replace
from ...spec import TensorSpec
from ...symbols.context import Specialize
from ...symbols.expr import Expr
from ...symbols.size import Size, SizeFloat, value_of
from ...symbols.symbolic_numbers import symbols_of
from ..lazy_module import LazyModule, copy_with
from ..nested import map_leaves, map_nodes
from ..node_meta import mutated_by

__all__ = ["ScalarInput", "Values", "graph_at", "moved_to", "results_of", "sized_graph", "spec_at"]

Values = Mapping[Expr, object]


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """An input that is the same for all calls of these sizes: a 0-dim tensor with a number, which
    may be a Size.
    """

    spec: TensorSpec
    value: Any

    def make(self, values: Values = MappingProxyType({})) -> torch.Tensor:
        return torch.full((), value_of(self.value, dict(values)), dtype=self.spec.dtype)


def spec_at(spec: TensorSpec, values: Values) -> TensorSpec:
    """Return the spec with its symbols replaced by these values: ints, or Sizes of another
    Context.
    """
    return _moved_spec(spec, dict(values))


def _moved_spec(spec: TensorSpec, known: dict[Expr, object]) -> TensorSpec:
    """Do `spec_at` and cache intermediate values in `known`."""
    numbers = *spec.shape, *spec.stride, spec.storage_offset
    if set(map(type, numbers)) == {int}:
        return spec
    rank = len(spec.shape)
    *made, offset = [n if type(n) is int else value_of(n, known) for n in numbers]
    return replace(spec, shape=tuple(made[:rank]), stride=tuple(made[rank:]), storage_offset=offset)


def results_of(gm: GraphModule) -> int:
    """Return the number of results of a graph."""
    return len(next(iter(reversed(gm.graph.nodes))).args[0])  # type: ignore[arg-type]


def moved_to(values: Values) -> Callable[[Any], Any]:
    """Return the function that replaces the symbols of a size or a spec by these values: ints, or
    Sizes of another Context. It returns other objects unchanged.
    """
    known = dict(values)

    def moved(part: Any) -> Any:
        if isinstance(part, TensorSpec):
            return _moved_spec(part, known)
        return value_of(part, known)

    return moved


def graph_at(gm: GraphModule, values: Values) -> GraphModule:
    """Return a copy of a graph with the symbols in its specs and arguments replaced by values:
    ints, or Sizes of another Context.
    """
    moved, copies, graph = moved_to(values), dict[Node, Node](), Graph()
    for node in gm.graph.nodes:
        args, kwargs = map_nodes((node.args, node.kwargs), copies.__getitem__, moved)
        copy = copy_with(graph, node, args, kwargs)
        copy.meta = {**node.meta, "spec": map_leaves(node.meta.get("spec"), moved)}
        if "functions" in node.meta:
            functions = node.meta["functions"]
            copy.meta["functions"] = tuple(one and graph_at(one, values) for one in functions)
        copies[node] = copy
    return LazyModule(gm, graph)


def sized_graph(
    gm: GraphModule, values: Values
) -> tuple[GraphModule, tuple[int | ScalarInput, ...]]:
    """Return a torch-level graph with these values of its symbols, and its inputs: indices of the
    old ones, and numbers computed from sizes, so that graphs of different sizes share kernels.
    Arguments hold the sizes, no node computes one. Metas stay unchanged, except for specs.

    Raises Specialize if a call takes a float computed from sizes that are not ints here.
    """
    graph, made, kept = Graph(), dict[Node, Any](), dict[Node, int | ScalarInput]()
    known = dict(values)

    def use(node: Node) -> object:
        value = made[node]
        if not isinstance(value, SizeFloat):
            return value
        taken = [known[symbol] for symbol in symbols_of(value.expr)]
        if varying := [
            s for size in taken if isinstance(size, Size) for s in symbols_of(size.expr)
        ]:
            raise Specialize(varying, "a call takes a float computed from it")
        return value_of(value, known)

    def add_input(node: Node, value: int | ScalarInput) -> Node:
        with graph.inserting_after(next(reversed(kept), graph._root)):
            copy = graph.placeholder(node.name)
        kept[copy] = value
        return copy

    for node in gm.graph.nodes:
        size = node.meta.get("val")
        if isinstance(size, Size):
            is_float = isinstance(size, SizeFloat)
            made[node] = size if is_float else value_of(size, known)
            continue
        if node.op == "placeholder":
            copy = add_input(node, len(kept))
        elif node.meta.get("number"):
            number = node.args[1]
            value = number.meta["val"] if isinstance(number, Node) else number
            copy = add_input(node, ScalarInput(node.meta["spec"], value))
        else:
            args, kwargs = map_nodes(node.args, use), map_nodes(node.kwargs, use)
            copy = copy_with(graph, node, args, kwargs)
        made[node] = copy
        _describe(copy, node, made, known)
    for unused in [node for node in kept if not node.users]:
        graph.erase_node(unused)
        del kept[unused]
    return LazyModule(gm, graph), tuple(kept.values())


def _describe(copy: Node, node: Node, made: dict[Node, object], known: dict[Expr, object]) -> None:
    def moved(part: object) -> Any:
        return _moved_spec(part, known) if isinstance(part, TensorSpec) else part

    copy.meta = {**node.meta, "spec": map_leaves(node.meta.get("spec"), moved)}
    if written := mutated_by(node):
        copy.meta["mutates"] = tuple(made[target] for target in written)
