"""Splits graphs into partitions at calls that create data-dependent sizes ("makers").

Input: a torch-level graph with data-dependent output shapes (data_sizes.py). Output: partitions
that run one after the other. Every second partition consists of makers alone and runs in eager. To
later partitions, the sizes that makers created are sizes of inputs, which may differ from call to
call (compile/sizes.py). The partition before a maker contains only the calls that the maker needs;
all others are scheduled as late as possible. So experts that each take the rows of a mask form one
partition after all masks. Calls that write to the same memory, draw random numbers or may raise
keep their order.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from operator import getitem
from operator import index as read_index
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...errors import CompileFailed, OperationFailed
from ...lazy_dataclass import dataclass
from ...spec import TensorSpec
from ...symbols.expr import Expr
from ...symbols.size import DataSize, Size
from ...symbols.symbolic_numbers import Symbol
from ..gradients import gradients
from ..memory import memory_of
from ..node_meta import (
    changes_mode,
    is_effectful,
    is_number,
    lines_of,
    mutated_by,
    symbols_in,
    tensors_in,
    value_of,
)
from ..subgraphs import Subgraph, assemble, refuse_crossing
from ..target_names import call_name
from ..targets.regions import FunctionCall
from .size_nodes import size_in

__all__ = ["DataPartition", "DataPartitions", "makers_in", "split_at_data"]


_MOST_LEVELS = 16  # partitions with and without data-dependent sizes in turn, after one maker


@dataclass(frozen=True, slots=True)
class DataPartition:
    """A partition. `data_dependent`: it consists of calls that create data-dependent sizes and runs
    in eager. `asked`: indices of its outputs that are results of the whole graph.
    """

    part: Subgraph
    data_dependent: bool
    asked: frozenset[int]


@dataclass(frozen=True, slots=True)
class DataPartitions:
    """The partitions in order, and the slots of the graph's outputs (subgraphs.py)."""

    partitions: tuple[DataPartition, ...]
    outputs: tuple[int, ...]


def split_at_data(gm: GraphModule) -> DataPartitions | None:
    """Return the partitions, or None without data-dependent sizes. Raises OperationFailed if the
    graph cannot be split.
    """
    nodes = list(gm.graph.nodes)
    makers = makers_in(nodes)
    if not makers:
        return None
    first = makers[0]
    if any(node.target is gradients for node in nodes):
        raise _refused(first, "gradients are computed in the same graph")
    sizes = {node for node in nodes if node.op == "call_function" and is_number(node)}
    tensors = [node for node in nodes if node not in sizes]
    why = ""
    for separate in (True, False):
        assigned = _assigned(tensors, makers, separate)
        try:
            for node in nodes:
                refuse_crossing(node, assigned, _is_shared)
        except CompileFailed as failed:
            why = str(failed)
        else:
            return _pieces(nodes, assigned, sizes)
    raise _refused(first, why)


def _refused(node: Node, why: str) -> OperationFailed:
    return OperationFailed(call_name(node.target), why, node, next(iter(lines_of(node)), None))


def _is_size(node: Node) -> bool:
    return isinstance(value_of(node), Size)


def makers_in(nodes: Sequence[Node]) -> list[Node]:
    """Return the calls that create a data-dependent size, and others marked to run in eager."""
    seen: set[Expr] = set()
    found: list[Any] = []
    for node in nodes:
        fresh = {s for s in symbols_in(node) if isinstance(s.origin, DataSize)} - seen
        if fresh or node.meta.get("data_dependent"):
            found.append(node if not _is_size(node) else node.args[0])
            seen |= fresh
    return sorted(dict.fromkeys(found), key=nodes.index)


# --------------------------------------------------------------------------- which partition


def _assigned(nodes: Sequence[Node], makers: Sequence[Node], separate: bool) -> dict[Node, int]:
    """Return the partition of each call: odd numbers are partitions of makers.

    Items of a tuple are taken in its partition. `separate`: calls without data-dependent sizes get
    partitions of their own.
    """
    calls = [node for node in nodes if node.op not in ("placeholder", "output")]
    wholes = {node: _whole(node) for node in calls}
    plain = not any(_is_barrier(node) for node in calls)
    needs = _needs(calls, set(makers)) if plain else None
    left, assigned = [node for node in calls if wholes[node] is node], dict[Node, int]()
    for step in range(len(makers)):
        ready = _ready(left, makers, needs)
        if not ready:
            break
        before = _required_by(ready, left, needs)
        for node in left:
            if node in ready or node in before:
                assigned[node] = 2 * step + (node in ready)
        left = [node for node in left if node not in assigned]
    last = max(assigned.values()) + 1
    assigned.update((node, last) for node in left)
    if separate and needs is not None:
        assigned = _separated(assigned, needs)
    return {node: assigned[wholes[node]] for node in calls}


def _separated(assigned: Mapping[Node, int], needs: Needs) -> dict[Node, int]:
    """Move calls that are compiled for one size into partitions of their own."""
    levels: dict[Node, int] = {}
    made: dict[Node, int] = {}
    for node, piece in sorted(assigned.items(), key=lambda item: item[1]):
        if piece % 2:
            made[node] = piece * _MOST_LEVELS * 2 + 1
            continue
        least = max((levels[n] for n in needs[node] if assigned[n] == piece), default=0)
        levels[node] = least + (least % 2 != _has_sizes_of_data(node))
        made[node] = (piece * _MOST_LEVELS + levels[node]) * 2
    return made if max(levels.values(), default=0) < _MOST_LEVELS else dict(assigned)


def _has_sizes_of_data(node: Node) -> bool:
    around = (node, *node.all_input_nodes, *_read_by(node))
    symbols = (symbol for one in around for symbol in symbols_in(one))
    return any(isinstance(symbol.origin, DataSize) for symbol in symbols)


def _whole(node: Node) -> Node:
    """Return the call that a node stays with: that of the tuple it is taken from or of the value it
    asserts; else the node.
    """
    parent = node.args[0] if node.args else None
    if not isinstance(parent, Node) or parent.op == "placeholder":
        return node
    if node.target is getitem and isinstance(parent.meta.get("spec"), tuple):
        return _whole(parent)
    return _whole(parent) if _is_assertion(node) else node


def _is_assertion(node: Node) -> bool:
    """Return whether the node is an assertion, which stays next to the value it checks."""
    return node.target is torch.ops.aten._linalg_check_errors.default and value_of(node) is None


def _is_barrier(node: Node) -> bool:
    """Return whether other calls must not be moved across it, even independent ones."""
    is_call = not isinstance(node.target, FunctionCall) and node.target != "requires_grad_"
    return changes_mode(node) or not is_call


Needs = Mapping[Node, set[Node]]


def _needs(calls: Sequence[Node], makers: Container[Node]) -> Needs:
    """Return the calls that must run before each call: those it reads from, and earlier ones that
    write to the same memory or have side effects outside the graph.
    """
    needs: dict[Node, set[Node]] = {}
    writers: dict[int, Node] = {}
    readers: dict[int, set[Node]] = {}
    outside: set[int] = set()
    acted: Node | None = None
    made: set[Node] = set()
    for node in calls:
        read = _read_by(node)
        found = {_whole(one) for one in read if one.op != "placeholder"}
        outside |= {cell for one in read if one.op == "placeholder" for cell in memory_of(one)}
        written = {cell for target in mutated_by(node) for cell in memory_of(target)}
        touched = written | {cell for one in read for cell in memory_of(one)}
        found |= {writers[cell] for cell in touched if cell in writers}
        for cell in written:
            found |= readers.pop(cell, set())
            writers[cell] = node
        for cell in touched - written:
            readers.setdefault(cell, set()).add(node)
        drawn = bool(node.meta.get("random"))
        acts = bool(written & outside) or drawn or (is_effectful(node) and not written)
        if (acts or node in makers) and acted is not None:
            found.add(acted)
        if acts:
            found |= made
            acted = node
        if node in makers:
            made.add(node)
        needs[node] = {_whole(one) for one in found} - {node}
    return needs


def _read_by(node: Node) -> list[Node]:
    """Return the tensors that a call reads, or whose sizes or numbers it reads."""
    found = []
    for one in node.all_input_nodes:
        found += _read_by(one) if is_number(one) else [one]
    return found


def _ready(left: Sequence[Node], makers: Sequence[Node], needs: Needs | None) -> set[Node]:
    """Return the makers that depend on no other maker."""
    rest = [node for node in left if node in makers]
    if needs is None:
        return set(rest[:1])
    waiting: set[Node] = set()
    for node in left:
        if any(one in waiting or (one in makers and one in rest) for one in needs[node]):
            waiting.add(node)
    return {node for node in rest if node not in waiting}


def _required_by(ready: set[Node], left: Sequence[Node], needs: Needs | None) -> set[Node]:
    """Return the calls that must run before the makers."""
    if needs is None:
        (first,) = ready
        return set(left[: left.index(first)])
    found, open_ = set[Node](), list(ready)
    while open_:
        for one in needs[open_.pop()]:
            if one not in found:
                found.add(one)
                open_.append(one)
    return found & set(left)


def _is_shared(target: Node, here: int, assigned: Mapping[Node, int]) -> bool:
    """Return whether a partition may not write to a tensor of earlier partitions. It may if it has
    no other input over that memory, and the tensor has no history or only that of an eager call.
    """
    memory = memory_of(target)
    before = [node for node, at in assigned.items() if at < here]
    before += target.graph.find_nodes(op="placeholder")
    earlier = [node for node in before if memory & memory_of(node)]
    read = [one for one in earlier if any(assigned.get(user) == here for user in one.users)]
    return len(read) > 1 or any(
        tensor.requires_grad
        for one in earlier
        # A leaf that is written to is refused elsewhere.
        if one.op != "placeholder" and not assigned[one] % 2
        for tensor in tensors_in(value_of(one))
    )


# ------------------------------------------------------------------------------- the partitions


def _pieces(
    nodes: Sequence[Node], assigned: Mapping[Node, int], sizes: Container[Node]
) -> DataPartitions:
    owners = _owners(nodes)

    def where_sizes_are_read(body: list[Node]) -> set[Node]:
        around = {one for node in body for one in node.all_input_nodes} | set(body)
        read = {symbol: node for node in around for symbol in symbols_in(node)}
        for symbol in read.keys() - owners.keys():
            raise _refused(read[symbol], f"no tensor has the size {symbol.name} that it uses")
        return {owners[symbol] for symbol in read}

    split = assemble(nodes, assigned, sizes, where_sizes_are_read)
    results = set(split.outputs)
    pieces: list[DataPartition] = []
    slot = sum(node.op == "placeholder" for node in nodes)
    for index, part in zip(sorted(set(assigned.values())), split.subgraphs, strict=True):
        asked = frozenset(n for n in range(part.outputs) if slot + n in results)
        pieces.append(DataPartition(part, bool(index % 2), asked))
        slot += part.outputs
    return DataPartitions(tuple(pieces), split.outputs)


def _owners(nodes: Sequence[Node]) -> dict[Symbol, Node]:
    """Return the first tensor that has each symbol as one of its sizes, or the call that reads
    it.
    """
    found: dict[Symbol, Node] = {}
    for node in nodes:
        value = value_of(node) if node.target in (size_in, read_index) else None
        if isinstance(value, Size) and isinstance(value.expr, Symbol):
            found.setdefault(value.expr, node)
        spec = node.meta.get("spec")
        for size in spec.shape if isinstance(spec, TensorSpec) else ():
            if isinstance(size, Size) and isinstance(size.expr, Symbol):
                found.setdefault(size.expr, node)
    return found
