"""Joins small collectives into one, which costs the latency of one.

In: an ATen graph, as it is before it is lowered. Out: a graph in which collectives of one kind,
group, reduction, dtype and device, none of which needs the result of another, are one: what they
send is packed into a flat tensor, and their results are copies of slices, which lowering makes
loops that fuse with what computes and reads them.

Each rank must join alike. So the answer depends on the operations of the graph, and on the sizes of
the collectives, which are the same on all ranks; with symbolic sizes, comparisons become predicates
of the kernels. It does not depend on the sizes of other tensors, which may differ between ranks.
Collectives of one group may pass each other, those of different groups never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...compat.distributed import group_named
from ...lazy_dataclass import dataclass, field
from ...spec import TensorSpec
from ...symbols.size import Dimension, hint_of
from ..lazy_module import LazyModule, copy_node
from ..operators.foreign import has_side_effects, is_foreign, is_random_op
from ..operators.raising import may_raise_on_data
from ..operators.target_traits import operation_of
from ..symbolic.concrete import Values, moved_to
from .packing import PACKED, is_contiguous, write_joined
from .waited import is_waited, started_by

__all__ = ["JoinedCollectives", "Joining", "join_collectives"]

# Two gloo ranks, medians of interleaved runs, by bytes of each of 20: 1 KB takes 13 times as long
# alone as joined, 16 KB 7 times, 64 KB 3.4 times, 256 KB 1.5 times; 1 MB is no faster joined.
_SMALL = 128 << 10  # bytes that a collective reads or returns, the larger
_LARGEST = 2 << 20  # bytes of a joined one: little beside what may be under way (late_waits)

_ORDERED = ("sum", "product", "min", "max")  # reductions of integers, exact in any order


@dataclass(frozen=True, slots=True)
class JoinedCollectives:
    """Says that `count` collectives became one, of `size` bytes in this call."""

    kind: str
    count: int
    size: int

    def __str__(self) -> str:
        return f"{self.count} calls of {self.kind} joined into one, of {self.size} bytes"


@dataclass(frozen=True, eq=False, slots=True)
class Joining:
    """Holds a graph, what was joined in it, and by name the nodes that this added."""

    module: GraphModule
    found: tuple[JoinedCollectives, ...] = ()
    added: Mapping[str, Node] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Bucket:
    """Collectives that may be joined. `after`: they, and the calls that need their results."""

    group: object
    size: Dimension
    members: list[Node]
    after: set[Node] = field(default_factory=set)


def join_collectives(
    gm: GraphModule, values: Values = MappingProxyType({}), exact: bool = True
) -> Joining:
    """Return the graph with small collectives joined, or the graph itself if nothing can be.

    `values`: those of its symbols, ints or Sizes. `exact`: leave reductions alone whose result may
    depend on where in a message an element is.
    """
    if sum(is_waited(node.target) for node in gm.graph.nodes) < 2:
        return Joining(gm)
    search = _Search(moved_to(values), exact)
    for node in gm.graph.nodes:
        search.visit(node)
    buckets = [bucket for bucket in search.closed if len(bucket.members) > 1]
    if not buckets:
        return Joining(gm)
    found = [
        JoinedCollectives(_kind(one.members[0]), len(one.members), hint_of(one.size))
        for one in buckets
    ]
    made = LazyModule(gm, _rewritten(gm.graph, buckets))
    before = {node.name for node in gm.graph.nodes}
    added = {node.name: node for node in made.graph.nodes if node.name not in before}
    return Joining(made, tuple(found), added)


class _Search:
    """Finds what can be joined, in one pass over a graph."""

    def __init__(self, moved: Callable[[Any], Any], exact: bool) -> None:
        self._moved, self._exact = moved, exact
        self._open: dict[object, _Bucket] = {}  # by all that members have in common
        self.closed: list[_Bucket] = []

    def visit(self, node: Node) -> None:
        """Look at the next node."""
        if node.op == "output" or _writes(node):  # what a write changes may be read before it
            self._close(lambda bucket: True)
        if node.op != "call_function":
            return
        self._follow(node)
        if not _communicates(node):
            return
        group = _group_of(node)
        self._close(lambda bucket: group is None or bucket.group != group)
        spec = self._moved(node.meta.get("spec"))
        if group is not None and isinstance(spec, TensorSpec) and self._can_join(node, spec):
            self._add(node, spec, group)

    def _follow(self, node: Node) -> None:
        """Let the node wait for those buckets whose results it needs, or end them."""
        read = node.all_input_nodes
        needed = [one for one in self._open.values() if not one.after.isdisjoint(read)]
        if needed and _stays(node):
            self._close(lambda bucket: bucket in needed)
            return
        for bucket in needed:
            bucket.after.add(node)

    def _close(self, ends: Callable[[_Bucket], bool]) -> None:
        for key, bucket in list(self._open.items()):
            if ends(bucket):
                self.closed.append(self._open.pop(key))

    def _can_join(self, node: Node, spec: TensorSpec) -> bool:
        sent = self._moved(_sent(node).meta.get("spec"))
        if _kind(node) not in PACKED or not isinstance(sent, TensorSpec):
            return False
        if self._exact and not _is_exact(node, spec):
            return False
        return is_contiguous(spec) and bool(sent.nbytes <= _SMALL and spec.nbytes <= _SMALL)

    def _add(self, node: Node, spec: TensorSpec, group: object) -> None:
        key = (node.target, _common(node.args[1:]), spec.dtype, spec.device)
        sent: TensorSpec = self._moved(_sent(node).meta["spec"])
        size = sent.nbytes if _kind(node) == "reduce_scatter_tensor" else spec.nbytes
        bucket = self._open.get(key)
        if bucket is not None and not bucket.size + size <= _LARGEST:
            self.closed.append(self._open.pop(key))
            bucket = None
        if bucket is None:
            bucket = self._open[key] = _Bucket(group, 0, [])
        bucket.size += size
        bucket.members.append(node)
        bucket.after.add(node)


# -- facts about calls -----------------------------------------------------------------------------


def _communicates(node: Node) -> bool:
    """Return whether the call starts a collective, or may: what an operator from outside does is
    unknown.
    """
    if is_waited(node.target):
        return started_by(node.target) is not None  # type: ignore[arg-type]
    return (
        is_foreign(node.target) and has_side_effects(node.target) and not is_random_op(node.target)
    )


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _stays(node: Node) -> bool:
    """Return whether the call may not run later. A long one would keep what it reads, and leave
    little to hide the joined collective behind.
    """
    target: Any = node.target
    if has_side_effects(target) or may_raise_on_data(node):
        return True
    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    facts = operation_of(target)  # kernels that choose strides: convolutions, factorisations
    return facts.is_product or facts.kernel_strides or "attention" in schema.name


def _kind(node: Node) -> str:
    op = started_by(node.target) if is_waited(node.target) else None  # type: ignore[arg-type]
    return op._opname if op is not None and op.namespace == "_c10d_functional" else ""


def _sent(node: Node) -> Node:
    (sent,) = node.all_input_nodes
    return sent


def _group_of(node: Node) -> object:
    """Return the group of a collective of torch; None for other calls."""
    if not is_waited(node.target) or len(node.all_input_nodes) != 1 or node.kwargs:
        return None
    return _common(node.args)[-1]


def _common(args: Iterable[object]) -> tuple[object, ...]:
    """Return the arguments that must be equal, with groups by name."""
    return tuple(getattr(arg, "group_name", arg) for arg in args)


def _is_exact(node: Node, spec: TensorSpec) -> bool:
    """Return whether each element of the result is the same wherever in a message it is. The ranks
    are added in an order that depends on that, which two numbers do not.
    """
    if "reduce" not in _kind(node):
        return True
    reduction, group = node.args[1], _group_of(node)
    if not spec.dtype.is_floating_point:
        return reduction in _ORDERED and spec.dtype is not torch.bool and not spec.dtype.is_complex
    pair = group_named(str(group)).size() == 2
    # NCCL scales before it adds, which rounds subnormal numbers; gloo divides the sum. The greater
    # of a number and NaN, or of two zeros, depends on which comes first.
    return pair and (
        reduction in ("sum", "product") or (reduction == "avg" and spec.device.type == "cpu")
    )


# -- the new graph ---------------------------------------------------------------------------------


def _rewritten(old: Graph, buckets: Sequence[_Bucket]) -> Graph:
    """Return the graph with one collective where the last of each bucket is. Calls that need a
    result before that follow it, in their order.
    """
    graph, made = Graph(), dict[Node, Node]()
    ends = {bucket.members[-1]: bucket for bucket in buckets}
    members = {node for bucket in buckets for node in bucket.members}
    waiting: list[Node] = []

    def add(node: Node) -> None:
        made[node] = copy_node(graph, node, made.__getitem__)

    for node in old.nodes:
        if node in ends:
            found = ends[node].members
            sent = [made[_sent(one)] for one in found]
            made.update(zip(found, write_joined(graph, _kind(node), found, sent), strict=True))
            still = []
            for other in waiting:
                if _is_ready(other, made):
                    add(other)
                else:
                    still.append(other)
            waiting = still
        elif node not in members:
            if _is_ready(node, made):
                add(node)
            else:
                waiting.append(node)
    assert not waiting
    return graph


def _is_ready(node: Node, made: Mapping[Node, Node]) -> bool:
    return all(one in made for one in node.all_input_nodes)
