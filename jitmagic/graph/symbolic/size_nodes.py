"""Creates graph nodes for the sizes that calls take.

Input: arguments of a call with Sizes (or SymInts) in them. Output: the arguments with nodes in
their place: `aten.sym_size.int` or `sym_stride` of an input for a symbol (`operator.index` if the
input is the number itself), calls of `operator` and `math` for arithmetic. One node for each
expression; its meta `val` is the Size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ...errors import SizesDiffer, UserLine
from ...operators.operation import operation
from ...spec import TensorSpec
from ...symbols.context import Context, Specialize
from ...symbols.expr import Expr, Integer
from ...symbols.polynomial import application
from ...symbols.size import DataSize, Size, SizeFloat, expr_of, size_or_float, stride_place
from ...symbols.symbolic_numbers import OPERATIONS, Number, Symbol, symbols_of
from ..propagate import DataDependent, EagerRaises, run_on_meta, running_wrappers
from ..target_names import Target, call_name, target_name
from .sym_node import as_dimension, sizes_in

__all__ = [
    "LARGEST_SIZE",
    "READ",
    "READ_AT_LEVEL",
    "SizeNodes",
    "expected_in",
    "run_on_history",
    "size_in",
]

aten = torch.ops.aten
READ = aten.sym_size.int, aten.sym_stride.int
READ_AT_LEVEL = torch.Tensor.size, torch.Tensor.stride  # sym_size ignores functorch levels
LARGEST_SIZE = 2**31  # the upper bound of data-dependent sizes
_VALUE = -1  # stands for a dimension in `inputs`: the input is an int and is the size itself


def size_in(tensor: torch.Tensor) -> int:
    """Return the int in a tensor that the trace used as a size. Raises SizesDiffer if it is out of
    the range of sizes.
    """
    size = operator.index(tensor)
    if not 0 <= size <= LARGEST_SIZE:
        raise SizesDiffer(f"{size} is not a size")
    return size


def expected_in(value: object) -> int:
    """Return the number of expectations on data-dependent sizes in nested arguments."""
    size = next(sizes_in(value), None)
    return 0 if size is None else len(size.context.deferred_asserts)


class SizeNodes:
    """The size nodes of one graph.

    `inputs`: for each symbol, the node and the dimension (or stride) that it is read from, by the
    operators `read`. `outer`: the size nodes of the enclosing graph; `capture` turns one of its
    nodes into an input of this graph.
    """

    def __init__(
        self,
        graph: Graph,
        read: tuple[object, object] = READ,
        outer: SizeNodes | None = None,
        capture: Callable[[Node], Node] = lambda node: node,
    ) -> None:
        self._graph, self._read, self._outer, self._capture = graph, read, outer, capture
        self._made: dict[Expr, Node] = {}
        self.inputs: dict[Expr, tuple[Node, int]] = {}

    @property
    def are_used(self) -> bool:
        """Return whether the graph or an enclosing one has symbols."""
        return bool(self.inputs) or (self._outer is not None and self._outer.are_used)

    def symbols(self) -> list[Any]:
        """Return the symbols read in this graph and in enclosing graphs."""
        return [*self.inputs, *(() if self._outer is None else self._outer.symbols())]

    def add_input(self, node: Node, spec: TensorSpec) -> None:
        """Add an input; symbols that occur in it first are read from it."""
        strides = ((stride_place(dim), step) for dim, step in enumerate(spec.stride))
        for place, size in (*enumerate(spec.shape), *strides):
            if isinstance(size, Size) and isinstance(size.expr, Symbol):
                self.inputs.setdefault(size.expr, (node, place))

    def add_result(self, node: Node, shape: Sequence[object]) -> None:
        """Add a call's result; data-dependent sizes that occur in it first are read from it."""
        for dim, size in enumerate(shape):
            symbol = None if type(size) is int else expr_of(as_dimension(size))
            if isinstance(symbol, Symbol) and isinstance(symbol.origin, DataSize):
                self.inputs.setdefault(symbol, (node, dim))

    def add_number(self, node: Node, symbol: Expr) -> None:
        """Add an input that is an int, which may be a size."""
        self.inputs[symbol] = node, _VALUE

    def place_of(self, symbol: Expr) -> tuple[Node, int] | None:
        """Return the node and dimension that the symbol is read from; -1 if the node is the
        number.
        """
        if symbol not in self.inputs and self._outer is not None:
            around = self._outer.place_of(symbol)
            if around is not None:
                self.inputs[symbol] = self._capture(around[0]), around[1]
        return self.inputs.get(symbol)

    def are_data_dependent(self) -> bool:
        """Return whether all symbols are data-dependent."""
        return all(isinstance(symbol.origin, DataSize) for symbol in self.inputs)  # type: ignore[attr-defined]

    def in_call(
        self, target: Target, arguments: object, lines: tuple[UserLine, ...], step: int
    ) -> Any:
        """Return the nested arguments with a node for each size. Raises Specialize for a float that
        the shape of the result may depend on.
        """
        if not operation(target_name(target)).floats_are_data:
            for size in sizes_in(arguments):
                if isinstance(size, SizeFloat):
                    raise Specialize(symbols_of(size.expr), f"an argument of {call_name(target)}()")
        return self._in_arguments(arguments, lines, step)

    def _in_arguments(self, value: Any, lines: tuple[UserLine, ...], step: int) -> object:
        if isinstance(value, torch.SymInt):
            value = as_dimension(value)
        if isinstance(value, Size):
            return self._node(value.expr, value.context, lines, step)
        if isinstance(value, dict):
            return {key: self._in_arguments(item, lines, step) for key, item in value.items()}
        if type(value) in (tuple, list, torch.Size):
            items = [self._in_arguments(item, lines, step) for item in value]
            return items if type(value) is list else tuple(items)
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*(self._in_arguments(part, lines, step) for part in parts))
        return value

    def _node(self, expr: Expr, context: Context, lines: tuple[UserLine, ...], step: int) -> Any:
        if isinstance(expr, Integer | Number):
            return expr.value
        if (known := self._made.get(expr)) is not None:
            return known
        args: tuple[Any, ...]
        if isinstance(expr, Symbol):
            target, args = self._reading(expr)
        else:
            op, operands = application(expr)
            target = OPERATIONS[op].python
            args = tuple(self._node(one, context, lines, step) for one in operands)
        node = self._made[expr] = self._graph.call_function(target, args)
        node.meta.update(val=size_or_float(expr, context), spec=None, lines=lines, step=step)
        return node

    def _reading(self, symbol: Symbol) -> tuple[Any, tuple[Any, ...]]:
        """Return the target and arguments of the call that reads the symbol."""
        found = self.place_of(symbol)
        if found is None:
            raise Specialize((symbol,), "a function with a graph of its own")
        node, place = found
        if place == _VALUE:
            of_data = isinstance(symbol.origin, DataSize)
            return size_in if of_data else operator.index, (node,)
        size, stride = self._read
        return (size, found) if place >= 0 else (stride, (node, stride_place(place)))


def run_on_history(target: Target, args: tuple[object, ...], grad: bool, sizes: SizeNodes) -> Any:
    """Run a call on meta tensors that follows their autograd history, which may have symbolic sizes
    that no argument has. If it fails, Specialize restarts the trace without symbols.
    """
    try:
        with running_wrappers():  # that the history goes through
            return run_on_meta(target, args, {}, grad, guesses=False)
    except (DataDependent, EagerRaises):
        if symbols := sizes.symbols():
            raise Specialize(symbols, f"{call_name(target)} on symbolic sizes") from None
        raise
