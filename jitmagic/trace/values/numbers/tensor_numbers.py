"""Reads numbers from one-element tensors: `tensor.item()`, `float(tensor)`, `int(tensor)`.

Input: the node of the tensor. Output: a constant if the trace knows the number, else a NumberValue:

    an input      a CPU tensor not written to so far, like the flags and counters that modules keep
                  in buffers: a symbol whose hint is the tensor's value, so that a branch on it is
                  decided and guarded (InRange) like one on a Python number
    a counter     an optimizer's step count, an input that the trace only adds to: a symbol without
                  a hint, so that only its range decides branches. If a branch needs more, the next
                  attempt at the trace has this call's value as the hint
    any other     an unbacked symbol, without a hint; what the trace assumes of it is asserted

If a use needs a constant, the next attempt at the trace breaks at the read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from ....compat.functions import foreach_add_
from ....compat.tensors import is_transformed
from ....graph.builder import GraphBuilder
from ....graph.memory import storage_of
from ....graph.node_meta import device_of
from ....graph.operators.recurrent import sequences_in
from ....graph.symbolic.known import known_number
from ....guards.guard import READ_BY_GUARDS, InRange
from ....guards.source import Source, describe
from ....lazy_dataclass import dataclass
from ....symbols.expr import Integer
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.symbolic_numbers import Symbol, constant
from ...breaks import GraphBreak, UnsupportedOperation
from ...varying.origins import Count, InputNumber, KnownCount
from ..base import Machine, Value
from ..objects.class_facts import belongs_to_torch
from ..torch_warnings import replay_warning
from .arithmetic import Scalar
from .assertions import speculated_int
from .number import NumberValue

__all__ = ["NUMBERS", "Reading", "decided_by_input", "number_of", "numbers_of", "read_counter"]

NUMBERS = ("item", "__float__", "__int__")
"""Methods of tensors, and of arrays and scalars of numpy."""
_CONVERT: dict[str, type] = {"__float__": float, "__int__": int}
_CPU = torch.device("cpu")
_FLOATS = (torch.float32, torch.float64)
_MOST_NUMBERS = 32  # each is a tensor of the graph
_COMPARISONS: Mapping[Any, str] = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=",
    operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_EXACT_IN_FLOAT = 2**24  # float32 holds integers exactly up to here
_LARGEST_COUNT = 2.0**40  # the largest count that is modelled


@dataclass(frozen=True, slots=True)
class Reading:
    """The origin of the symbol of a number read from a tensor: the index of the read."""

    number: int


def number_of(machine: Machine, node: Node, name: str) -> Value | None:
    """Return the result of a method of NUMBERS, or None for a graph break."""
    # float() of a tensor that requires grad warns in eager, item() does not.
    if name != "item" and node.meta["val"].requires_grad:
        stand_in = torch.ones((), device="cpu").requires_grad_()
        replay_warning(machine, f"Tensor.{name}", getattr(torch.Tensor, name), stand_in)
    if name != "__float__" and (count := sequences_in(node)) is not None:
        return machine.constant(count)
    known = known_number(machine.graph, node)
    if known is not None and (name != "__int__" or math.isfinite(known)):
        return machine.constant(known if name == "item" else _CONVERT[name](known))
    if node.meta["val"].dtype is torch.bool:
        decided = decided_by_input(machine, node)
        if decided is not None:
            return machine.constant(decided if name == "item" else _CONVERT[name](decided))
        if name != "item":
            return None
    number = _read(machine, node)
    if name == "item" or not isinstance(number, NumberValue):
        return number
    return number.call_method(machine, name, [], {})


def numbers_of(machine: Machine, node: Node) -> list[Value] | None:
    """Return the numbers of a small tensor in row-major order, or None for a graph break."""
    meta: torch.Tensor = node.meta["val"]
    graph = machine.graph
    if not all(type(size) is int for size in meta.shape) or not meta.dtype.is_signed:
        return None
    if not 0 < meta.numel() <= _MOST_NUMBERS or meta.is_complex():
        return None
    flat = graph.call("reshape", [node, (-1,)], {}, machine.lines())
    found = []
    for position in range(meta.numel()):
        one = graph.call(operator.getitem, [flat, position], {}, machine.lines())
        if (number := number_of(machine, one, "item")) is None:
            return None
        found.append(number)
    return found


def _read(machine: Machine, node: Node) -> Value | None:
    """Return the number in a tensor, or None for a graph break.

    On a GPU the read synchronises, as in eager. Stream capture forbids that, so with CUDA graphs
    the read is a graph break.
    """
    graph = machine.graph
    meta: torch.Tensor = node.meta["val"]
    if not graph.is_frame or graph.modes_vary or meta.numel() != 1:
        return None
    is_recorded = device_of(node) != _CPU and machine.options.cuda_graphs
    if is_recorded or meta.is_complex():  # no symbol holds a complex number
        return None
    kind: type = float if meta.is_floating_point() else int
    dtype = torch.float64 if kind is float else torch.int64
    symbol = symbol_of_input(machine, node)
    if symbol is not None:
        return NumberValue(Scalar(kind, symbol, _copied(machine, node, meta, dtype)))
    origin = Reading(machine.symbols.count_of(Reading))
    if origin in machine.symbols.constants:
        speculated = speculated_int(machine, node)
        return None if speculated is None else machine.constant(speculated)
    symbol = Symbol(f"item {origin.number}", kind, _limits(meta.dtype), origin)
    machine.symbols.add(symbol, None)
    if meta.dtype is torch.bool:
        return NumberValue(Scalar(bool, symbol, _copied(machine, node, meta, torch.bool)))
    copied = _copied(machine, node, meta, dtype)
    machine.symbols.read_from[symbol] = copied
    return NumberValue(Scalar(kind, symbol, copied))


def _copied(machine: Machine, node: Node, meta: torch.Tensor, dtype: torch.dtype) -> Node:
    """Record a copy on the CPU, because later writes to the tensor must not change the number."""
    graph = machine.graph
    lines = machine.lines()
    if meta.requires_grad:
        node = graph.call("detach", [node], {}, lines)
    if meta.dim():
        node = graph.call("reshape", [node, ()], {}, lines)
    wanted = [dtype] if device_of(node) == _CPU else [_CPU, dtype]
    made: Node = graph.call("to", [node, *wanted], {"copy": True}, lines)
    return made


# -- inputs ----------------------------------------------------------------------------------------


def symbol_of_input(machine: Machine, node: Node) -> Symbol | None:
    """Return the symbol of the number in an input; None if guards cannot read it."""
    graph = machine.graph
    node = _whole(node)
    owner = machine.notes.owners.get(node) if node.op == "placeholder" else None
    if owner is None or owner.live is None or graph.writes.to(node):
        return None
    source, live, symbols = owner.source, owner.live, machine.symbols
    if source is None or device_of(node).type != "cpu":
        return None
    origin = InputNumber(source)
    is_read = live.numel() == 1 and live.dtype in READ_BY_GUARDS and not is_transformed(live)
    if origin in symbols.constants or not is_read:
        return None
    symbol: Symbol | None = symbols.values.get(source)
    hint, limits = live.item(), _limits(live.dtype, nan=False)
    if symbol is None and limits.has(hint):
        kind = float if live.dtype.is_floating_point else int
        symbol = symbols.values[source] = Symbol(describe(source), kind, limits, origin)
        symbols.add(symbol, hint)
    return symbol


def _whole(node: Node) -> Node:
    """Return the tensor that a one-element view was taken from: `flag[0]`, `flag.squeeze()`."""
    while node.op != "placeholder" and not node.meta.get("mutates"):
        source = next(iter(node.all_input_nodes), None)
        if source is None:
            return node
        whole, part = source.meta["val"], node.meta["val"]
        if not (isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor)):
            return node
        if whole.numel() != 1 or part.numel() != 1 or storage_of(source) != storage_of(node):
            return node
        node = source
    return node


def decided_by_input(machine: Machine, node: Node) -> bool | None:
    """Return the guarded `bool(tensor)` of an input, or of its comparison with a number."""
    op, operand, number = "!=", node, 0
    if node.op == "call_function" and node.target in _COMPARISONS and not node.kwargs:
        op = _COMPARISONS[node.target]
        operand, number = node.args  # type: ignore[assignment]
    if not isinstance(operand, Node) or type(number) not in (bool, int, float):
        return None
    symbol = symbol_of_input(machine, operand) if _is_exact(operand, number) else None
    if symbol is None:
        return None
    other = constant(number) if symbol.kind is float else Integer(int(number))
    return machine.symbols.decide(op, symbol, other)


def _limits(dtype: torch.dtype, nan: bool = True) -> Interval:
    """Return the interval of the numbers in a tensor of a dtype."""
    if dtype is torch.bool:
        return Interval(0, 1)
    if dtype.is_floating_point:
        return ANY_FLOAT._replace(nan=nan)
    info = torch.iinfo(dtype)
    return Interval(info.min, info.max)


def _is_exact(node: Node, number: float) -> bool:
    """Return whether tensors compare with the number as Python does, without rounding it."""
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor) or abs(number) > _EXACT_IN_FLOAT:
        return False
    if meta.dtype is torch.float32:
        return float(torch.tensor(number, dtype=torch.float32)) == number
    return meta.dtype is torch.float64 or float(number).is_integer()


# -- counters --------------------------------------------------------------------------------------


def read_counter(
    machine: Machine, node: Node, live: torch.Tensor | None, source: Source | None
) -> Value | None:
    """Return the value of `tensor.item()`, or None for a graph break.

    torch's optimizers read their step count this way, and their code is inlined.
    """
    graph: GraphBuilder = machine.graph
    by_torch = belongs_to_torch(str(machine.frame.globals.store.live.get("__name__")))
    if by_torch and live is None and (count := _count_from(graph, node)) is not None:
        counted: Value = machine.constant(count)
        return counted
    if live is None or source is None or live.dim():
        return None
    if machine.symbols.varying is None and not by_torch:
        return None
    if not graph.is_frame:  # the number may outlive the region that is being traced
        return None
    if device_of(node) != _CPU or live.dtype not in _FLOATS:
        return None
    added = _added(graph, node)
    if added is None or not 0 <= live.item() <= _LARGEST_COUNT:
        return None
    # All parameters' counters are read by the same code: if one needed a hint, all need one. A
    # counter in user code gets none: a program that acts at every tenth step would be compiled once
    # for each count.
    known = by_torch and any(isinstance(one, Count) for one in machine.symbols.constants)
    origin = KnownCount(source, added) if known else Count(source, added)
    if (refused := machine.symbols.constants.get(origin)) is not None:
        broken = GraphBreak(UnsupportedOperation.of(what=refused.why, types="number from a tensor"))
        broken.where = refused.where
        raise broken
    count = float(live.item() + added)
    whole = known and count.is_integer() and count <= _EXACT_IN_FLOAT
    largest = float(_EXACT_IN_FLOAT) if whole else _LARGEST_COUNT
    machine.guard(InRange(source, 0.0, largest - added, whole))
    value = graph.call("to", [node, torch.float64], {"copy": True}, machine.lines())
    # backend="eager" computes marked nodes by Python's arithmetic: a step of AdamW has eleven for
    # each parameter, and as tensor operations they made it 1.7x eager (0.84x with Python's).
    value.meta["python"] = True
    # Up to 2**24, float32 adds whole numbers without rounding.
    limits = Interval(float(added), largest if whole else 2 * _LARGEST_COUNT)
    symbol = Symbol(describe(source), float, limits, origin, whole)
    machine.symbols.add(symbol, count if known else None)
    return NumberValue(Scalar(float, symbol, value))


def _count_from(graph: GraphBuilder, node: Node) -> float | None:
    """Return the value of a counter that the trace created: its start plus the additions."""
    start = 0.0 if node.target is torch.zeros else node.target is torch.tensor and node.args[0]
    added = _added(graph, node)
    counts = node.meta["val"].dtype in _FLOATS
    if type(start) is not float or not start.is_integer() or not counts or added is None:
        return None
    return start + added if start >= 0 and start + added <= _EXACT_IN_FLOAT else None


def _added(graph: GraphBuilder, node: Node) -> int | None:
    """Return the sum of small natural numbers added to an input; None if other writes exist."""
    total = 0
    for each in graph.writes.to(node):
        amount = _amount(each, node)
        if amount is None or amount not in range(1 << 16):
            return None
        total += int(amount)
    return total


def _amount(each: Node, node: Node) -> float | None:
    """Return what a node adds to the counter by `count += n` or _foreach_add_(counts, n)."""
    if each.target is operator.iadd and each.args[0] is node:
        factor: Any = 1
    elif each.target is foreach_add_ and node in each.args[0]:  # type: ignore[operator]
        factor = each.kwargs.get("alpha", 1)
    else:
        return None
    added: Any = each.args[1]
    if isinstance(added, Node) and added.target is torch.tensor and not added.users.keys() - {each}:
        added = added.args[0]
    numbers = isinstance(added, int | float) and isinstance(factor, int | float)
    return added * factor if numbers else None
