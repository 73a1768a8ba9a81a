"""`tensor.item()`, `float(tensor)`, `int(tensor)`: tensor data as a Python number.

Comes in: the node of a tensor with one element. Goes out: a ScalarValue, whose symbol has no hint:
it is used in arithmetic, kept, returned, and nothing is decided by it. What asks for more than that
(a branch, a size, text) makes the next attempt at the trace break at the read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.known import known_number
from ...graph.nested import map_nodes
from ...graph.node_meta import device_of
from ...graph.propagate import DataDependent, Target
from ...symbols.interval import ANY_FLOAT, Interval
from ...symbols.scalar import Symbol
from ..numpy_emulation import ARRAY_SCALARS
from .base import Machine, Value
from .scalars import ScalarValue

__all__ = ["NUMBERS", "call_with_known", "number_of", "plain_number", "with_known"]

NUMBERS = ("item", "__float__", "__int__")
"""Methods of tensors, and of arrays and scalars of numpy."""
_CONVERT: dict[str, type] = {"__float__": float, "__int__": int}
_CPU = torch.device("cpu")
_ASKING_FOR_DTYPES = ("torch tensor", "torch as_tensor", "torch asarray", "operator setitem")


@dataclass(frozen=True, slots=True)
class Reading:
    """The origin of such a symbol: which of the numbers that the trace reads it is."""

    number: int


def number_of(machine: Machine, node: Node, name: str) -> Value | None:
    """What a method of NUMBERS gives; None: break."""
    known = known_number(machine.graph, node)
    if known is not None and (name != "__int__" or math.isfinite(known)):
        return machine.constant(known if name == "item" else _CONVERT[name](known))
    number = _read(machine, node)
    if number is None or name == "item":
        return number
    return number.as_float(machine) if name == "__float__" else number.apply(machine, "trunc")


def call_with_known(
    machine: Machine, target: Target, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A call in the graph. Where torch reads a number out of an argument, one that the trace knows
    takes its place.
    """
    graph: GraphBuilder = machine.graph
    try:
        return graph.call(target, args, kwargs, machine.lines())
    except DataDependent:
        given, named = map_nodes((args, kwargs), partial(with_known, graph))
        if (given, named) == (args, kwargs):
            raise
        return graph.call(target, given, named, machine.lines())


def with_known(graph: GraphBuilder, node: Node) -> Any:
    """The number in a 0-dim tensor, if the trace knows it; else the node."""
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor) or meta.dim():
        return node
    number = known_number(graph, node)
    return node if number is None else number


def _read(machine: Machine, node: Node) -> ScalarValue | None:
    """On a GPU eager waits for the number, and what it is used for goes on there: that breaks."""
    graph: GraphBuilder = machine.graph
    meta: torch.Tensor = node.meta["val"]
    if graph is not graph.root or graph.modes_vary or meta.numel() != 1:
        return None
    kind = float if meta.is_floating_point() else int
    if device_of(node) != _CPU or meta.dtype is torch.bool or meta.is_complex():
        return None
    origin = Reading(machine.symbols.count_of(Reading))
    if origin in machine.symbols.constants:
        return None
    limits = ANY_FLOAT
    if kind is int:
        info = torch.iinfo(meta.dtype)
        limits = Interval(info.min, info.max)
    symbol = Symbol(f"item {origin.number}", kind, limits, origin)
    machine.symbols.add(symbol, None)
    return ScalarValue(kind, symbol, _copied(machine, node, meta, kind))


def _copied(machine: Machine, node: Node, meta: torch.Tensor, kind: type) -> Node:
    """As it is now, whatever is written to the tensor later."""
    graph: GraphBuilder = machine.graph
    lines = machine.lines()
    if meta.requires_grad:
        node = graph.call("detach", [node], {}, lines)
    if meta.dim():
        node = graph.call("reshape", [node, ()], {}, lines)
    dtype = torch.float64 if kind is float else torch.int64
    made: Node = graph.call("to", [node, dtype], {"copy": True}, lines)
    return made


def plain_number(constant: Any, name: str) -> Any:
    """Python's number in place of numpy's, where torch takes the one for the other."""
    if type(constant) not in ARRAY_SCALARS[1:] or name in _ASKING_FOR_DTYPES:
        return constant
    return constant.item()
