"""Makes the graph of one size tuple from a graph with symbolic sizes.

Input: a torch-level graph whose metas hold Sizes, and the values of its symbols. Output: the graph
that the tracer would have made for tensors of those sizes. Each call is recorded again by a
GraphBuilder, so that metas, views, writes and strides are inferred anew. Sizes become constants;
numbers computed from them become inputs, so that graphs of different sizes share kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...errors import CompileFailed, SizesDiffer
from ...spec import TensorSpec
from ...symbols.expr import Expr
from ...symbols.size import Size, SizeFloat, value_of
from ..builder import GraphBuilder, map_nodes
from ..gradients import gradients
from ..lazy_module import LazyModule
from ..nested import map_leaves
from ..node_meta import device_of, mutated_by, spec_on
from ..node_meta import value_of as meta_of
from ..regions import FunctionCall
from ..transforms import is_transform
from .number_ranges import add_number, number_in

__all__ = [
    "ScalarInput",
    "Values",
    "concrete_graph",
    "graph_at",
    "results_of",
    "sized_graph",
    "spec_at",
]

Values = Mapping[Expr, Any]


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


def _moved_spec(spec: TensorSpec, known: dict[Expr, Any]) -> TensorSpec:
    """Do `spec_at` and cache intermediate values in `known`."""
    numbers = *spec.shape, *spec.stride, spec.storage_offset
    if not any(isinstance(number, Size) for number in numbers):
        return spec
    rank = len(spec.shape)
    *made, offset = [value_of(number, known) for number in numbers]
    return replace(spec, shape=tuple(made[:rank]), stride=tuple(made[rank:]), storage_offset=offset)


def concrete_graph(
    gm: GraphModule, values: Values, grad: bool, name: str, warns: bool = False
) -> tuple[GraphModule, tuple[int | ScalarInput, ...]]:
    """Return the graph at these values, and its inputs: indices of the old ones, and new ones.

    `grad`: the grad mode on entry. `warns`: a call of the program has these sizes and the trace had
    not. Raises CompileFailed if it does not compute what the symbolic graph does.
    """
    replay = _Replay(values, grad, warns)
    for node in gm.graph.nodes:
        replay.follow(node)
    made, left = replay.builder.finish(name)
    if results_of(made) != results_of(gm):
        raise CompileFailed("several results of the graph are one tensor at these sizes")
    return made, tuple(replay.fed[node] for node in left)


def results_of(gm: GraphModule) -> int:
    """Return the number of results of a graph."""
    return len(next(iter(reversed(gm.graph.nodes))).args[0])  # type: ignore[arg-type]


# ------------------------------------------------------------------------- without calling anything


def graph_at(gm: GraphModule, values: Values) -> GraphModule:
    """Return a copy of a graph with the symbols in its specs and arguments replaced by values:
    ints, or Sizes of another Context.
    """
    known, copies, graph = dict(values), dict[Node, Node](), Graph()

    def moved(part: object) -> Any:
        if isinstance(part, Node):
            return copies[part]
        if isinstance(part, Size):
            return value_of(part, known)
        return _moved_spec(part, known) if isinstance(part, TensorSpec) else part

    for node in gm.graph.nodes:
        args, kwargs = map_leaves((tuple(node.args), dict(node.kwargs)), moved)
        copy = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copy.meta = {**node.meta, "spec": map_leaves(node.meta.get("spec"), moved)}
        copies[node] = copy
    return LazyModule(gm, graph)


def sized_graph(
    gm: GraphModule, values: Values
) -> tuple[GraphModule, tuple[int | ScalarInput, ...]]:
    """Do `concrete_graph` with Sizes of another Context: arguments hold them, no node computes one.
    Metas stay unchanged.

    Raises CompileFailed if a call takes a float computed from sizes.
    """
    graph, made, kept = Graph(), dict[Node, Any](), dict[Node, int | ScalarInput]()
    known = dict(values)

    def use(node: Node) -> Any:
        if isinstance(made[node], SizeFloat):
            raise CompileFailed(f"a call takes {made[node]}, which is a float computed from sizes")
        return made[node]

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
            copy = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made[node] = copy
        _describe(copy, node, made, known)
    for unused in [node for node in kept if not node.users]:
        graph.erase_node(unused)
        del kept[unused]
    return LazyModule(gm, graph), tuple(kept.values())


def _describe(copy: Node, node: Node, made: dict[Node, Any], known: dict[Expr, Any]) -> None:
    def moved(part: object) -> Any:
        return _moved_spec(part, known) if isinstance(part, TensorSpec) else part

    copy.meta = {**node.meta, "spec": map_leaves(node.meta.get("spec"), moved)}
    if written := mutated_by(node):
        copy.meta["mutates"] = tuple(made[target] for target in written)


class _Replay:
    """The new graph so far, and the counterpart of each old node in it."""

    def __init__(self, values: Values, grad: bool, warns: bool) -> None:
        self.values = values
        self.builder = GraphBuilder(grad, lambda: self.step)
        self.builder.warns = warns
        self.made: dict[Node, Any] = {}
        self.inputs = 0  # how many inputs of the old graph were replayed so far
        self.fed: dict[Node, int | ScalarInput] = {}  # new input -> old input's index, or a number
        self.step = 0

    def follow(self, node: Node) -> None:
        """Record the node again, in the checkpointed region in which it was recorded."""
        nodes = self.builder.graph.nodes
        last = next(iter(reversed(nodes)), None)  # torch 2.11: not an iterator
        self._follow(node)
        region = node.meta.get("checkpoint")
        since = takewhile(lambda new: new is not last, reversed(nodes))
        for new in since if region is not None else ():
            new.meta["checkpoint"] = region
        made = self.made.get(node)
        if "enters" in node.meta and isinstance(made, Node):
            made.meta["enters"] = node.meta["enters"]

    def _follow(self, node: Node) -> None:
        self.step = node.meta.get("step", self.step)
        if node.op == "placeholder":
            spec = spec_at(node.meta["spec"], self.values)
            self.made[node] = made = self.builder.placeholder(node.name, spec)
            self.fed[made] = self.inputs
            self.inputs += 1
        elif node.op == "output":
            self._leave(node)
        elif isinstance(size := node.meta["val"], Size):
            self.made[node] = value_of(size, dict(self.values))
        elif node.meta.get("number"):
            self.made[node] = self._number(node)
        elif node.target is number_in:
            self.made[node] = self._as_number(node)
        elif node.target is torch.ops.aten._linalg_check_errors.default and size is None:
            self._assert(node)
        elif node.target is torch._C._set_grad_enabled:
            self.builder.set_grad_enabled(node.args[0])  # type: ignore[arg-type]
        elif node.target in (torch.set_autocast_dtype, torch.set_autocast_enabled):
            self._cast(node)
        else:
            self.made[node] = self._call(node)

    def _number(self, node: Node) -> Node:
        """Copy a node of `number_node` (trace/values/numbers/arithmetic.py) as a new input."""
        value = map_nodes(node.args[1], self.made.__getitem__)
        spec: TensorSpec = node.meta["spec"]
        made = self.builder.placeholder(node.name, spec)
        self.fed[made] = ScalarInput(spec, value)
        return made

    def _as_number(self, node: Node) -> Node:
        """Copy a node of `add_number` (number_ranges.py)."""
        given = self.made[node.all_input_nodes[0]]
        hint, range, lines = map(node.meta.__getitem__, ("val", "range", "lines"))
        return add_number(self.builder.graph, given, hint, range, tuple(lines), self.step)

    def _assert(self, node: Node) -> None:
        """Copy a node of `GraphBuilder.assert_false`."""
        args = map_nodes(node.args, self.made.__getitem__)
        made = self.builder.graph.call_function(node.target, args, node.kwargs)  # type: ignore[arg-type]
        made.meta = dict(node.meta)
        self.builder.assertions.append(made)

    def _cast(self, node: Node) -> None:
        """Apply a change of autocast. A dtype is set only where autocast is on or is switched on
        next.
        """
        device, value = node.args
        if value is not True:
            dtype = value if isinstance(value, torch.dtype) else None
            self.builder.set_autocast(replace(self.builder.autocast, **{str(device): dtype}))

    def _call(self, node: Node) -> Any:
        args = map_nodes(node.args, self.made.__getitem__)
        kwargs = map_nodes(node.kwargs, self.made.__getitem__)
        lines = tuple(node.meta["lines"])
        if node.target is operator.getitem and isinstance(args[0], tuple | list):
            return args[0][args[1]]
        if node.target == "requires_grad_":
            return self.builder.require_grad(args[0], lines)
        if isinstance(node.target, FunctionCall):
            *groups, captured, left = args
            follow = lambda: (captured, left)  # noqa: E731
            return self.builder.call_function(node.target, tuple(groups), lines, follow)
        if node.target is gradients:
            return self.builder.differentiate(args, lines)
        if is_transform(node.target):
            device = next(spec.device for spec in node.meta["spec"])
            return self.builder.call_transform(node.target, args, device, lines)
        made = self.builder.call(node.target, args, kwargs, lines)
        if isinstance(node.meta["spec"], TensorSpec):
            self._check(node, made)
        return made

    def _check(self, node: Node, made: Any) -> None:
        """Raise SizesDiffer if the shape or dtype that the trace inferred for all sizes is wrong at
        these.
        """
        wanted = spec_at(node.meta["spec"], self.values)
        is_one = isinstance(made, Node)
        # Not `meta["spec"]`, a snapshot from before later in-place writes changed the shape.
        found = spec_on(meta_of(made), device_of(made)) if is_one else None
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise SizesDiffer(f"{node.name} is {found} at these sizes, not {wanted}")

    def _leave(self, node: Node) -> None:
        for result in node.args[0]:  # type: ignore[union-attr]
            self.builder.output(self.made[result])  # type: ignore[index]
