"""Models tensor data as a Python number: `tensor.item()`, `float(tensor)`, `int(tensor)`.

Input: the node of a tensor with one element. Output: a ScalarValue whose symbol has no hint
(unbacked). The program can compute with it, store it and return it. A bool gives a TruthValue,
which can be stored, returned and asserted. If a use needs the value (a branch, text), the next
attempt at the trace breaks at the read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.nested import map_nodes
from ....graph.node_meta import device_of
from ....graph.operators.recurrent import sequences_in
from ....graph.propagate import DataDependent, Target
from ....graph.symbolic.known import known_number
from ....graph.symbolic.sym_node import as_dimension
from ....symbols.context import Specialize
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.scalar import Symbol
from ...result import Recipe
from ..base import Builder, Machine, Value
from ..numpy.emulation import ARRAY_SCALARS, np
from ..tensors.torch_warnings import replay_warning
from .input_numbers import decided_by_input, symbol_of_input
from .scalar_calls import call_with_scalars
from .scalars import ScalarValue, SymbolicNumber
from .validation import asserted_truth, speculated_int

__all__ = [
    "NUMBERS",
    "call_with_known",
    "is_number",
    "number_of",
    "numbers_of",
    "torch_constant",
    "with_known",
]

NUMBERS = ("item", "__float__", "__int__")
"""Methods of tensors, and of arrays and scalars of numpy."""
_CONVERT: dict[str, type] = {"__float__": float, "__int__": int}
_CPU = torch.device("cpu")
_MOST_NUMBERS = 32  # each is a tensor of the graph
_FACTORS = ("alpha", "beta", "value")  # arguments that are numbers, whatever the operation
_PYTHON_DTYPES: dict[type, torch.dtype] = {
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
    complex: torch.complex128,
}
_MOST_IN_RANGE = 1024
_NONZERO = ("nonzero", torch.nonzero)
_REPEATING = ("repeat_interleave", torch.repeat_interleave)
_LARGEST = torch.iinfo(torch.int64).max
_ASKING_FOR_DTYPES = ("torch tensor", "torch as_tensor", "torch asarray")
_TAKING_RANGES = ("operator getitem", *_ASKING_FOR_DTYPES)


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
    if name == "item" or not isinstance(number, ScalarValue):
        return number
    return number.as_float(machine) if name == "__float__" else number.apply(machine, "trunc")


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


def call_with_known(
    machine: Machine, target: Target, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Record a call; where torch reads a number from a tensor argument, pass the number instead.

    It is a constant if the trace knows it, else a symbol, else this call's value as a speculation.
    """
    graph = machine.graph
    try:
        return graph.call(target, args, kwargs, machine.lines())
    except DataDependent:
        if (rows := _with_speculated_rows(machine, target, args, kwargs)) is not None:
            return rows
        # Known numbers and symbols come first: speculated ones can fail, and only library code may
        # speculate.
        given, named = map_nodes((args, kwargs), partial(with_known, graph))
        read = {name: _factor(machine, named[name]) for name in _FACTORS if name in named}
        if any(isinstance(number, ScalarValue) for number in read.values()):
            return call_with_scalars(machine, target, given, {**named, **read})
        if (given, named) == (args, kwargs):
            given, named = map_nodes((args, kwargs), partial(_with_speculated, machine))
        if (given, named) == (args, kwargs):
            raise
        return graph.call(target, given, named, machine.lines())


def _with_speculated(machine: Machine, node: Node) -> Any:
    """Return the speculated integer in a 0-dim tensor that library code uses as a size."""
    return _in_place_of(node, partial(speculated_int, machine))


def _with_speculated_rows(
    machine: Machine, target: Target, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Record `nonzero()`, `torch.where(mask)` or `repeat_interleave` with a speculated row count.

    Used where the count must be a constant. Coordinates have eager's strides: each is contiguous.
    """
    if target in _REPEATING and not kwargs and all(isinstance(arg, Node) for arg in args):
        total = speculated_int(machine, machine.graph.call("sum", args[-1:], {}, machine.lines()))
        if total is None:
            return None
        return machine.graph.call(target, args, {"output_size": total}, machine.lines())
    if target not in (*_NONZERO, torch.where) or kwargs or len(args) != 1:
        return None
    graph, lines = machine.graph, machine.lines()
    rows = speculated_int(machine, graph.call("count_nonzero", args, {}, lines))
    if rows is None:
        return None
    # nonzero_static returns contiguous rows, eager's nonzero the transpose of contiguous columns;
    # programs read the strides.
    found = graph.call(torch.nonzero_static, args, {"size": rows}, lines)
    columns = graph.call("contiguous", [graph.call("t", [found], {}, lines)], {}, lines)
    if target not in _NONZERO:
        return graph.call("unbind", [columns], {}, lines)
    return graph.call("t", [columns], {}, lines)


def _factor(machine: Machine, value: Any) -> Any:
    """Return the number of a 0-dim tensor given for an argument that must be a number."""
    if not isinstance(value, Node) or value.meta["val"].dim():
        return value
    number = number_of(machine, value, "item")
    return value if number is None else number


def with_known(graph: GraphBuilder, node: Node) -> Any:
    """Return the number in a 0-dim tensor if the trace knows it, else the node."""
    if (count := sequences_in(node)) is not None:
        return as_dimension(count)
    return _in_place_of(node, partial(known_number, graph))


def _in_place_of(node: Node, find: Callable[[Node], Any]) -> Any:
    """Return `find(node)` for a 0-dim tensor; the node itself for others, or if that is None."""
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor) or meta.dim():
        return node
    number = find(node)
    return node if number is None else number


class TruthValue(SymbolicNumber):
    """A bool read from a tensor. `node`: a 0-dim tensor of the graph with its value."""

    __slots__ = ("node", "symbol")

    def __init__(self, symbol: Symbol, node: Node) -> None:
        super().__init__(None)
        self.symbol, self.node = symbol, node

    def python_type(self, machine: Machine) -> type:
        return bool

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize((self.symbol,), f"{what} of {self.describe()}")

    def truth(self, machine: Machine) -> bool:
        wanted = asserted_truth(machine, self.node)
        return self.refuse(machine, "a branch") if wanted is None else wanted

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.Tensor.item, (builder.output(self, self.node),))

    def describe(self) -> str:
        return "a bool that varies"


def _read(machine: Machine, node: Node) -> Value | None:
    """Return the number in a tensor, or None for a graph break.

    On a GPU the read synchronises, as in eager. Stream capture forbids that, so with CUDA graphs
    the read is a graph break.
    """
    graph = machine.graph
    meta: torch.Tensor = node.meta["val"]
    if graph is not graph.root or graph.modes_vary or meta.numel() != 1:
        return None
    is_recorded = device_of(node) != _CPU and machine.options.cuda_graphs
    if is_recorded or meta.is_complex():  # no symbol holds a complex number
        return None
    kind: type = float if meta.is_floating_point() else int
    dtype = torch.float64 if kind is float else torch.int64
    symbol = symbol_of_input(machine, node)
    if symbol is not None:
        return ScalarValue(kind, symbol, _copied(machine, node, meta, dtype))
    origin = Reading(machine.symbols.count_of(Reading))
    if origin in machine.symbols.constants:
        speculated = speculated_int(machine, node)
        return None if speculated is None else machine.constant(speculated)
    limits = ANY_FLOAT
    if meta.dtype is torch.bool:
        limits = Interval(0, 1)
    elif kind is int:
        info = torch.iinfo(meta.dtype)
        limits = Interval(info.min, info.max)
    symbol = Symbol(f"item {origin.number}", kind, limits, origin)
    machine.symbols.add(symbol, None)
    if meta.dtype is torch.bool:
        return TruthValue(symbol, _copied(machine, node, meta, torch.bool))
    copied = _copied(machine, node, meta, dtype)
    machine.symbols.read_from[symbol] = copied
    return ScalarValue(kind, symbol, copied)


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


def torch_constant(constant: Any, name: str) -> Any:
    """Return a constant in the form that a call takes it.

    `float` becomes a dtype, a numpy scalar a Python number, a range the list of its numbers.
    """
    kind = type(constant)
    if kind is type:
        return _PYTHON_DTYPES.get(constant, constant)
    if kind is range and name in _TAKING_RANGES and len(constant) <= _MOST_IN_RANGE:
        return [*constant]
    is_plain = kind not in ARRAY_SCALARS[1:] or name in _ASKING_FOR_DTYPES
    if is_plain or not is_number(kind, name):
        return constant
    number = constant.item()
    # No call of torch takes a larger int, and numpy's own operator makes an array of it.
    is_too_large = isinstance(number, int) and number > _LARGEST
    return constant if is_too_large else number


def is_number(kind: type, name: str) -> bool:
    """Return whether the call `name` treats an operand of this class as a Python number.

    Exceptions are numpy scalars: eager raises when a numpy.float32 is assigned to a tensor, and
    torch.tensor uses its dtype.
    """
    if name in _ASKING_FOR_DTYPES and kind in ARRAY_SCALARS[1:]:
        return False
    is_written = name == "operator setitem" and kind in ARRAY_SCALARS
    return not is_written or issubclass(kind, float | np.integer)
