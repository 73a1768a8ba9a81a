"""`tensor.item()`, `float(tensor)`, `int(tensor)`: tensor data as a Python number.

Comes in: the node of a tensor with one element. Goes out: a ScalarValue, whose symbol has no hint:
it is used in arithmetic, kept, returned, and nothing is decided by it. What asks for more than that
(a branch, a size, text) makes the next attempt at the trace break at the read.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.node_meta import device_of
from ...symbols.interval import ANY_FLOAT, Interval
from ...symbols.scalar import Symbol
from ..numpy_emulation import ARRAY_SCALARS
from .base import Machine
from .scalars import ScalarValue

__all__ = ["NUMBERS", "known_number", "number_of", "plain_number"]

NUMBERS = ("item", "__float__", "__int__")
"""Methods of tensors, and of arrays and scalars of numpy."""
_CPU = torch.device("cpu")
_ASKING_FOR_DTYPES = ("torch tensor", "torch as_tensor", "torch asarray", "operator setitem")


@dataclass(frozen=True, slots=True)
class Reading:
    """The origin of such a symbol: which of the numbers that the trace reads it is."""

    number: int


def number_of(machine: Machine, node: Node, name: str) -> ScalarValue | None:
    """What a method of NUMBERS gives; None: break."""
    number = _read(machine, node)
    if number is None or name == "item":
        return number
    return number.as_float(machine) if name == "__float__" else number.apply(machine, "trunc")


_KNOWN = (operator.add, operator.sub, operator.mul, operator.neg)


def known_number(graph: GraphBuilder, node: Node) -> int | None:
    """Of a 0-dim int64 tensor that the trace made out of constants; None: of another one."""
    meta: torch.Tensor = node.meta["val"]
    if meta.dtype is not torch.int64 or meta.dim() or device_of(node) != _CPU:
        return None
    if graph.writers.get(meta.untyped_storage()._cdata):
        return None
    if node.target is torch.tensor and type(node.args[0]) is int:
        return node.args[0]
    if node.target not in _KNOWN or node.kwargs:
        return None
    parts = [known_number(graph, one) if isinstance(one, Node) else one for one in node.args]
    if not all(type(one) is int for one in parts):
        return None
    made = node.target(*parts)  # type: ignore[operator]
    return made if abs(made) < 2**63 else None


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
