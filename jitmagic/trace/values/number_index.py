"""`x[i]` where `i` is a tensor with one integer: eager reads it and gives a view of x.

Comes in: a tensor's value and the key. Goes out: a tensor that has only the places asked for, and
the key for it. It is a copy, so nothing may be written to either, and it may not leave the frame:
the graph ends before such an index then. On a GPU it always does: there a number that is out of
range would end the process's use of the device, where eager raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder, storage_of
from ...graph.known import known_number
from ...graph.node_meta import device_of
from ..breaks import TensorItem
from .base import Builder, Machine, Unrestorable, Value
from .constants import ConstantValue
from .sequences import SliceValue, TupleValue

__all__ = ["at_numbers"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_REASON = TensorItem.of(what="operator getitem()")


def at_numbers(
    machine: Machine, owner: Any, key: Value, lift: Callable[[Machine, Node], Value]
) -> list[Value]:
    """The tensor to index, and the key: the same ones where no part is such a number. `owner` is a
    TensorValue, and `lift` makes one."""
    graph: GraphBuilder = machine.graph
    key = key.realize(machine)
    parts = key.realized(machine) if isinstance(key, TupleValue) else [key]
    indices = {n: part.node for n, part in enumerate(parts) if isinstance(part, type(owner))}
    numbers = [n for n, node in indices.items() if _is_number(graph, node)]
    places = _places(parts, indices, owner.meta.dim()) if numbers else None
    usual = graph.root is graph and device_of(owner.node).type == "cpu"
    rows = owner.meta.is_contiguous() and owner.node not in graph.unknown_strides
    # What is computed of a view of columns lies as they do, of a copy row by row.
    if places is None or not usual or not (rows or owner.meta.dim() - len(numbers) < 2):
        return [owner, key]
    picked: Node = owner.node
    for n in numbers:
        whole = (slice(None),) * places[n]
        index = graph.call("reshape", (indices[n], (1,)), {}, machine.lines())
        picked = graph.call(operator.getitem, (picked, (*whole, index)), {}, machine.lines())
        parts[n] = machine.constant(0)
    in_front = [places[n] for n in numbers] == list(range(len(numbers)))
    if not (in_front and rows):  # it lies closer together than eager's view
        graph.unknown_strides.add(picked)
    _keep_apart(machine, owner.node, picked)
    return [lift(machine, picked), TupleValue(parts)]


def _is_number(graph: GraphBuilder, node: Node) -> bool:
    """One that only data tells."""
    meta: torch.Tensor = node.meta["val"]
    usual = not meta.dim() and meta.dtype in _INTEGERS and device_of(node).type == "cpu"
    return usual and known_number(graph, node) is None


def _places(parts: Sequence[Value], indices: Mapping[int, Node], rank: int) -> list[int] | None:
    """The dimension of each part; None where that is not so simple."""
    taken = [_takes(part, indices.get(n)) for n, part in enumerate(parts)]
    if None in taken or taken.count(-1) > 1:
        return None
    rest = rank - sum(n for n in taken if n is not None and n > 0)
    counts = [rest if n == -1 else n for n in taken if n is not None]
    return [sum(counts[:position]) for position in range(len(counts))] if rest >= 0 else None


def _takes(part: Value, index: Node | None) -> int | None:
    """How many dimensions a part of a key stands for; -1: all that the others leave."""
    if index is not None:
        return 1 if index.meta["val"].dtype in _INTEGERS else None
    if isinstance(part, ConstantValue):
        return {type(None): 0, int: 1, type(...): -1}.get(type(part.value))
    return 1 if isinstance(part, SliceValue) else None


def _keep_apart(machine: Machine, whole: Node, picked: Node) -> None:
    graph: GraphBuilder = machine.graph
    born: int = machine.step
    before = len(graph.writers.get(storage_of(whole), ()))
    memory = storage_of(picked)

    def check(builder: Builder) -> None:
        written = len(graph.writers.get(storage_of(whole), ())) > before
        handed_out = any(graph.is_output(n) and storage_of(n) == memory for n in graph.owners)
        if written or handed_out or graph.writers.get(memory):
            raise Unrestorable("a part of a tensor, at a place that is data", born, _REASON)

    machine.at_exit(check)
