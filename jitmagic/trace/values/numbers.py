"""Python floats whose value is data: read from a 0-dim tensor, or found to vary.

Comes in: `tensor.item()` of a graph input, floats at sources in `Machine.varying`, arithmetic on
them. Goes out: 0-dim float64 nodes of the graph. Python's float arithmetic is IEEE double
arithmetic, except that division by zero, powers that overflow and complex roots raise or change
the type: each number has bounds, guarded where it enters the graph, and an operation is followed
only if the bounds exclude all that. Comparisons are followed where the bounds decide them; those of
an argument with a constant narrow its bounds. Whatever else is done with such a number breaks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.node_meta import device_of
from ...guards.guard import InRange, TypeIs
from ...guards.source import Source, describe
from ...spec import TensorSpec
from ..result import GraphInput, Recipe
from ..wrap import intercepts
from .base import Builder, Machine, Value
from .class_facts import belongs_to_torch
from .constants import COMPARE, ConstantValue

__all__ = ["EXACT", "FloatValue", "is_unlike_numbers", "read_number"]

Bounds = tuple[float, float]

_CPU = torch.device("cpu")
_SCALAR = TensorSpec((), (), torch.float64, _CPU)
_LARGEST = 2.0**40  # of what is counted in tensors
EXACT = 2**53  # integers up to it are floats
_EXACT_IN_TENSORS = 2**24  # and up to this one float32
# An argument's bounds: those that hold its value. Zero stays a constant: programs branch on it.
_WIDE: Bounds = (-1e6, 1e6)
_ARGUMENT_BOUNDS: tuple[Bounds, ...] = ((1e-30, 1 - 1e-6), (1 - 1e-6, 1e6), (-1e6, -1e-30))
# Exponents and bases that pow() is replaced for, whose results may differ in the last bit.
_REPLACED = ((2.0, 3.0, 0.5, -0.5, -1.0, -2.0), (2.0,))
_UNLIKE = (type(None), str, bytes, tuple, list, dict, set, frozenset, torch.dtype, torch.device)
_POW_ERROR = 1e-12  # relative; libm and the kernels are far better


class FloatValue(Value):
    """A float between `low` and `high`; `node` is its value in the graph, 0-dim float64.

    `exact`: it was made from an int that varies and has to be Python's to the last bit.
    """

    __slots__ = ("exact", "high", "live", "low", "node")

    def __init__(
        self,
        node: Node,
        bounds: Bounds,
        source: Source | None = None,
        live: float | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__(source)
        self.node, self.live, self.exact = node, live, exact
        self.low, self.high = bounds

    def python_type(self, machine: Machine) -> type:
        return float

    def truth(self, machine: Machine) -> bool:
        if self.low <= 0 <= self.high:
            self.refuse(machine, "bool()")
        return True

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        bounds = _bounds_of(machine, other)
        if bounds is None:
            return None
        left, right = (other, self) if reflected else (self, other)
        exact = self.exact or (isinstance(other, FloatValue) and other.exact)
        if exact and op == "**" and _is_replaced(machine, left, right):
            self.refuse(machine, "** with another rounding")
        own = self.low, self.high
        made = _result(op, *((bounds, own) if reflected else (own, bounds)))
        if made is None:
            self.refuse(machine, f"{op} that might raise")
        target, full = _NODES[op], op == "/"  # a number by a tensor is reciprocal() * number
        args = [_as_argument(machine, left, full), _as_argument(machine, right, False)]
        node = machine.graph.call(target, args, {}, machine.lines())
        return FloatValue(node, made, exact=exact)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        bounds = _bounds_of(machine, other)
        if bounds is None:
            return None if is_unlike_numbers(machine, other) else self.refuse(machine, op)
        low, high = bounds
        if self.high < low:
            return machine.constant(COMPARE[op](0, 1))
        if self.low > high:
            return machine.constant(COMPARE[op](1, 0))
        if self.live is None or low != high:
            self.refuse(machine, f"comparison {op}")
        self._narrow(machine, low)
        return machine.constant(COMPARE[op](self.live, low))

    def _narrow(self, machine: Machine, limit: float) -> None:
        """An argument is guarded to lie on the side of the limit where it lies now."""
        assert self.live is not None
        assert self.source is not None
        if self.live <= limit:
            self.high = limit if self.live == limit else math.nextafter(limit, -math.inf)
        if self.live >= limit:
            self.low = limit if self.live == limit else math.nextafter(limit, math.inf)
        machine.guard(InRange(self.source, self.low, self.high))

    def unary(self, machine: Machine, op: str) -> Value:
        if op != "-":
            self.refuse(machine, f"unary {op}")
        node = machine.graph.call(operator.neg, [self.node], {}, machine.lines())
        return FloatValue(node, (-self.high, -self.low), exact=self.exact)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.Tensor.item, (builder.output(self, self.node),))

    def describe(self) -> str:
        return "number from a tensor" if self.source is None else "float that varies"


def is_unlike_numbers(machine: Machine, other: Value) -> bool:
    """Whether no number equals it, or it is a number that varies or a tensor: those are asked next.

    Classes that derive from numbers or compare as they like may equal one.
    """
    kind = other.python_type(machine)
    return kind in _UNLIKE or kind in (float, int) or issubclass(kind, torch.Tensor)


def _bounds_of(machine: Machine, value: Value) -> Bounds | None:
    """What a float operation may be told about its other operand; None: not a number."""
    if isinstance(value, FloatValue):
        return value.low, value.high
    if isinstance(value, ConstantValue) and isinstance(value.value, bool | int | float):
        number = value.as_constant(machine)
        if isinstance(number, int) and abs(number) > EXACT:
            value.refuse(machine, "arithmetic with a float")
        return float(number), float(number)
    return None


def _is_replaced(machine: Machine, base: Value, exponent: Value) -> bool:
    if isinstance(exponent, ConstantValue):
        return exponent.as_constant(machine) in _REPLACED[0]
    return isinstance(base, ConstantValue) and base.as_constant(machine) in _REPLACED[1]


def _as_argument(machine: Machine, value: Value, full: bool) -> Any:
    if isinstance(value, FloatValue):
        return value.node
    number = float(value.as_constant(machine))
    if not full:
        return number
    args, kwargs = [(), number], {"dtype": torch.float64}
    return machine.graph.call(torch.full, args, kwargs, machine.lines())


# -- bounds ----------------------------------------------------------------------------------------
# Rounding is monotonic: the rounded results at the ends bound the rounded results between them.


def _result(op: str, left: Bounds, right: Bounds) -> Bounds | None:
    """Bounds of `left op right`; None where it might raise, be no float or overflow."""
    if op not in _NODES or (op == "/" and right[0] <= 0 <= right[1]):
        return None
    if op == "**" and (left[0] < 0 or (left[0] == 0 and right[0] <= 0)):
        return None
    try:
        found = [_ENDS[op](a, b) for a in left for b in right]
    except OverflowError:
        return None
    if not all(map(math.isfinite, found)):
        return None
    low, high = min(found), max(found)
    return (low * (1 - _POW_ERROR), high * (1 + _POW_ERROR)) if op == "**" else (low, high)


_NODES: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
}
_ENDS: Mapping[str, Callable[[float, float], float]] = _NODES


# -- where they come from --------------------------------------------------------------------------


@intercepts(float)
def _wrap_varying(machine: Machine, obj: float, source: Source) -> Value | None:
    """A float that differs from call to call becomes an input of the graph."""
    if source not in (machine.varying or ()):
        return None
    possible = (_WIDE,) if machine.wide else _ARGUMENT_BOUNDS
    bounds = next((b for b in possible if b[0] <= obj <= b[1]), None)
    if bounds is None:
        return None
    machine.guard(TypeIs(source, float), InRange(source, *bounds))
    graph: GraphBuilder = machine.graph.root
    node = graph.placeholder(describe(source), _SCALAR)
    graph.inputs[node] = GraphInput(node.name, source, _SCALAR, is_number=True)
    return FloatValue(node, bounds, source, obj)


def read_number(
    machine: Any, node: Node, live: torch.Tensor | None, source: Source | None
) -> Value | None:
    """`tensor.item()` of a counter, a 0-dim CPU input that was only added to; None: break. Torch's
    own code, which is followed as eager runs it, counts the steps of optimizers so.
    """
    graph: GraphBuilder = machine.graph
    by_torch = belongs_to_torch(str(machine.frame.globals.live.get("__name__")))
    if by_torch and live is None and (count := _count_from(graph, node)) is not None:
        counted: Value = machine.constant(count)
        return counted
    if live is None or source is None or live.dim() or (machine.varying is None and not by_torch):
        return None
    if device_of(node) != _CPU or live.dtype not in (torch.float32, torch.float64):
        return None
    added = _added(graph, node)
    if added is None or not 0 <= live.item() <= _LARGEST:
        return None
    machine.guard(InRange(source, 0.0, _LARGEST))
    value = graph.call("to", [node, torch.float64], {"copy": True}, machine.lines())
    return FloatValue(value, (float(added), 2 * _LARGEST))


def _count_from(graph: GraphBuilder, node: Node) -> float | None:
    """The value of a counter that the trace made: a number, and what it added to that."""
    start = node.args[0] if node.target is torch.tensor else None
    added = _added(graph, node)
    counts = node.meta["val"].dtype in (torch.float32, torch.float64)
    if type(start) is not float or not start.is_integer() or not counts or added is None:
        return None
    return start + added if start >= 0 and start + added <= _EXACT_IN_TENSORS else None


def _added(graph: GraphBuilder, node: Node) -> int | None:
    """The sum of small natural numbers that the trace added to an input; None: it did more."""
    total = 0
    for each in graph.writers.get(node.meta["val"].untyped_storage()._cdata, ()):
        amount = _amount(each, node)
        if amount is None or amount not in range(1 << 16):
            return None
        total += int(amount)
    return total


def _amount(each: Node, node: Node) -> float | None:
    """What a node adds to the counter: `count += n`, or for many _foreach_add_(counts, n)."""
    if each.target is operator.iadd and each.args[0] is node:
        factor: Any = 1
    elif each.target is torch._foreach_add_ and node in each.args[0]:  # type: ignore[operator]
        factor = each.kwargs.get("alpha", 1)
    else:
        return None
    added: Any = each.args[1]
    if isinstance(added, Node) and added.target is torch.tensor and not added.users.keys() - {each}:
        added = added.args[0]
    numbers = isinstance(added, int | float) and isinstance(factor, int | float)
    return added * factor if numbers else None
