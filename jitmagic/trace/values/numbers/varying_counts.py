"""Models iterables with a varying number of items: `range(n)`, the rows of a tensor.

Input: sizes and ints that are symbols. Output: iterators that Python advances at run time, in a
loop that is not unrolled (rolled.py). The trace can peel the first iteration if the first item
exists in every call (peeled.py). Any other use specialises. The test of a `while` loop is
recognised by the symbol that it reads in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from ....symbols.context import Specialize
from ....symbols.expr import Integer
from ....symbols.size import Dimension, Size
from ....symbols.symbolic_numbers import Symbol
from ...breaks import GraphBreak, RolledLoop
from ...python_loops.rolled import peels, trip_count_varies
from ...residual_calls import advanced
from ...result import Recipe
from ..base import Builder, Machine, Value
from ..containers.iterators import IteratorValue
from ..objects.constants import ConstantValue
from ..tensor_base import TensorBase
from .number import NumberValue, dimension_value

__all__ = [
    "VaryingIterator",
    "VaryingRange",
    "VaryingRows",
    "loop_test_position",
    "symbols_in",
    "varying_rows",
]


def symbols_in(machine: Machine, values: Iterable[Value]) -> tuple[Symbol, ...]:
    """Return the symbols of the numbers among some values."""
    numbers = [one for one in values if isinstance(one, NumberValue) and one.is_plain]
    return tuple(symbol for number in numbers for symbol in number.symbols(machine))


def loop_test_position(machine: Machine, symbol: Symbol) -> tuple[int, int] | None:
    """Return (instruction of the root frame, trace step) of a read that may test a `while` loop.

    None inside a `for` loop or an inlined function. If the loop may be rolled, the same read in a
    second iteration is a graph break, where the rolled loop begins.
    """
    root = machine.root
    # A rolled loop begins at an instruction of the root frame, where Python can resume. In a `for`
    # loop that is unrolled, each iteration reads the symbol at the same instruction, which does not
    # make it the test of a `while`.
    if machine.frame is not root or any(isinstance(one, IteratorValue) for one in root.stack):
        return None
    at, step = root.at, machine.step
    # One step may narrow a symbol twice. An index into a dimension of size 1 does (two limits), and
    # was taken for two iterations of a `while` loop.
    earlier = machine.symbols.narrowed_at.get((symbol, at), set()) - {step}
    if machine.assumed.rolls_tests and earlier:
        raise GraphBreak(RolledLoop.of(what=symbol.name))
    return at, step


def varying_rows(machine: Machine, tensor: TensorBase, count: Value) -> Value | None:
    """Return an iterator over the rows of a tensor if their number varies, else None."""
    if not (symbols := symbols_in(machine, [count])):
        return None
    first = partial(first_part, tensor, machine.constant(0), count)
    # Tensor.__iter__ returns iter(self.unbind(0)), the iterator of a tuple.
    kind = type(iter(()))
    return VaryingIterator(iter, tensor, kind, symbols, "the rows of a tensor", first)


class VaryingRange(Value):
    """A range with a symbol as one of its bounds."""

    __slots__ = ("bounds", "symbols")

    def __init__(self, bounds: Sequence[Value], symbols: tuple[Symbol, ...]) -> None:
        super().__init__()
        self.bounds = tuple(bounds)
        self.symbols = symbols

    def python_type(self, machine: Machine) -> type:
        return range

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(self.symbols, f"{what} of a range of a size that varies")

    def iterate(self, machine: Machine) -> Value:
        # CPython has a second class, longrange_iterator, for bounds that exceed a C long. The
        # bounds here are sizes or int64 symbols, so it is never that one.
        return VaryingIterator(iter, self, type(iter(range(0))), self.symbols, "range", self._first)

    def backwards(self, machine: Machine) -> Value:
        """Return `reversed(range)`."""
        kind = type(iter(range(0)))
        return VaryingIterator(reversed, self, kind, self.symbols, "range", self._last)

    def _first(self, machine: Machine) -> Value | None:
        """Return the first number, or None if the range may be empty."""
        ends = self._ends(machine)
        return None if ends is None else dimension_value(machine, ends[0])

    def _last(self, machine: Machine) -> Value | None:
        """Return the last number if the step is 1 or -1; None if the range may be empty."""
        ends = self._ends(machine)
        # With another step, the last number depends on a remainder: of range(0, n, 2) it is n - 2
        # or n - 1.
        is_plain = ends is not None and ends[2] in (1, -1)
        return dimension_value(machine, ends[1] - ends[2]) if ends and is_plain else None

    def _ends(self, machine: Machine) -> tuple[Dimension, Dimension, int] | None:
        """Return the bounds and the step if the range is not empty in any call, else None."""
        bounds = [_size(machine, bound) for bound in self.bounds]
        start, stop = bounds[:2] if len(bounds) > 1 else (0, *bounds)
        step = bounds[2] if len(bounds) > 2 else 1
        if start is None or stop is None or not isinstance(step, int) or not step:
            return None
        is_there = _is_known(machine, "<" if step > 0 else ">", start, stop)
        return (start, stop, step) if is_there else None

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(range, tuple(builder(bound) for bound in self.bounds))

    def parts(self) -> Iterable[Value]:
        return self.bounds


class VaryingRows(Value):
    """The result of `tensor.unbind(dim)`, which has `count` items."""

    __slots__ = ("count", "dim", "symbols", "tensor")

    def __init__(
        self, tensor: TensorBase, dim: Value, count: Value, symbols: tuple[Symbol, ...]
    ) -> None:
        super().__init__()
        self.tensor, self.dim, self.count, self.symbols = tensor, dim, count, symbols

    def python_type(self, machine: Machine) -> type:
        return tuple

    def refuse(self, machine: Machine, what: str) -> NoReturn:
        raise Specialize(self.symbols, f"{what} of as many tensors as a size that varies")

    def length_value(self, machine: Machine) -> Value:
        return self.count

    def iterate(self, machine: Machine) -> Value:
        first = partial(first_part, self.tensor, self.dim, self.count)
        return VaryingIterator(iter, self, type(iter(())), self.symbols, "parts of a tensor", first)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(torch.unbind, (builder(self.tensor), builder(self.dim)))

    def parts(self) -> Iterable[Value]:
        return (self.tensor,)


def first_part(tensor: TensorBase, dim: Value, count: Value, machine: Machine) -> Value | None:
    """Return the first item of `tensor.unbind(dim)`, computed by `select`.

    None if there may be no item, or the tensor requires grad: eager refuses in-place writes to a
    result of a multi-output view, but not to one of `select`.
    """
    number = _size(machine, count)
    if number is None or tensor.meta.requires_grad or not _is_known(machine, "<", 0, number):
        return None
    # `unbind` would record one result per row, which makes the size a constant.
    part: Value = tensor.call_method(machine, "select", [dim, machine.constant(0)], {})
    return part


def _size(machine: Machine, number: Value) -> Dimension | None:
    """Return an int of the program, known or symbolic, or None."""
    if isinstance(number, NumberValue):
        size = number.as_size(machine)
        return size if isinstance(size, Size) else None
    if isinstance(number, ConstantValue) and type(number.value) is int:
        return number.value
    return None


def _is_known(machine: Machine, op: str, left: Dimension, right: Dimension) -> bool:
    """Return whether the comparison holds in every call that passes the guards."""
    symbols: Any = machine.symbols
    sides = (size.expr if isinstance(size, Size) else Integer(size) for size in (left, right))
    return symbols.known(op, *sides) is True


class VaryingIterator(IteratorValue):
    """The iterator `begin(over)`. `first` returns the first item, or None if there may be none."""

    __slots__ = ("begin", "first", "over", "symbols", "taken", "what")

    def __init__(
        self,
        begin: Callable[[Any], Any],
        over: Value,
        kind: type,
        symbols: tuple[Symbol, ...],
        what: str,
        first: Callable[[Machine], Value | None] | None = None,
    ) -> None:
        super().__init__(kind)
        self.begin, self.over, self.symbols, self.what = begin, over, symbols, what
        self.first, self.taken = first, 0

    def next(self, machine: Machine) -> Value | None:
        # Inputs of the first iteration often differ from later ones: an LSTM's states are one
        # tensor of zeros, or `h` is None. Peeling it saves a variant of the loop body.
        if self.first is not None and not self.taken and peels(machine, self.what):
            item = self.first(machine)
            if item is not None:
                self.taken = 1
                return item
        # Always raises: the graph ends at the loop, or the size becomes a constant.
        trip_count_varies(machine, self.symbols, self.what)

    def recipe(self, builder: Builder) -> Recipe:
        made = builder.invoke(self.begin, (builder(self.over),))
        return made if not self.taken else builder.invoke(advanced, (made, builder.constant(1)))

    def parts(self) -> Iterable[Value]:
        return (self.over,)
