"""The symbols of one attempt at a trace, and those that had to become constants.

Takes the numbers and sizes that vary, and the constants of earlier attempts. `Symbols` is the
Context in which Values compare symbols; each comparison that narrows a range adds a guard with
the user's line. After a Specialize the next attempt has one more constant, so attempts are limited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ...errors import UserLine
from ...guards.guard import Guard, InRange, NumbersRelate, SizesRelate
from ...guards.sizes import size_name
from ...guards.source import Drawn, Source
from ...symbols.context import Context, Specialize
from ...symbols.expr import Expr
from ...symbols.float_programs import is_computable
from ...symbols.interval import Interval, UnbackedRange
from ...symbols.polynomial import is_integral
from ...symbols.size import (
    DataSize,
    Size,
    SizeOf,
    hintless,
    is_same,
    is_tensor_symbol,
    origin_at,
    stride_place,
)
from ...symbols.symbolic_numbers import Symbol, symbols_of
from ..assumptions import Assumptions
from ..breaks import DataDecidesSize, Reason, UnbackedSize
from ..result import Specialized
from .origins import InputNumber, KnownCount
from .symbolic_sizes import LARGEST, SMALLEST, STRIDES, guards_of_range

__all__ = [
    "Constants",
    "Symbols",
    "specialized",
    "undecided_reason",
    "with_constants",
    "without_symbolic_sizes",
]

_EXAMPLE = 61  # example value of data-dependent sizes, if in range
Constants = Mapping[Hashable, Specialized]
"""Specialised numbers, by the origins of their symbols."""


class Symbols(Context):
    """The symbols of one attempt.

    `loop_test(symbol)`: the (instruction of the root, step) of a read that may test a `while` loop.
    """

    def __init__(
        self,
        assumed: Assumptions,
        guard: Callable[[Guard], None],
        loop_test: Callable[[Symbol], tuple[int, int] | None],
    ) -> None:
        super().__init__(self._guard_range, self._guard_relation)
        self.varying, self._dynamic = assumed.numbers, assumed.sizes
        if assumed.item_numbers:
            self.varying = assumed.item_numbers | (self.varying or frozenset())
        self.constants: Constants = assumed.constants
        self.has_ones = False  # a varying dimension is or was of size one
        self.owners: dict[Expr, tuple[Any, int]] = {}  # of a size: its TensorValue and dimension
        self.results: Mapping[Expr, tuple[Node, int]] = {}  # by data-dependent size
        self.read_from: dict[Symbol, Node] = {}  # tensors of data-dependent numbers
        self.read_sizes: dict[Symbol, Size] = {}  # data-dependent numbers that are sizes
        self.sizes: dict[Symbol, tuple[Hashable, Size | None]] = {}  # with earlier values
        self.values: dict[Source, Any] = {}  # NumberValues by source
        self.implied: dict[Source, Mapping[int, Interval]] = {}  # vary as those of a wrapper do
        self.where: UserLine | None = None  # line of the Specialize that ends the attempt
        # An instruction of the root that narrowed a symbol, and the steps at which it did.
        self.narrowed_at: dict[tuple[Symbol, int], set[int]] = {}
        self._loop_test, self._guard = loop_test, guard

    def _guard_range(self, symbol: Symbol, range: Interval) -> None:
        if (place := self._loop_test(symbol)) is not None:
            at, step = place
            self.narrowed_at.setdefault((symbol, at), set()).add(step)
        if is_tensor_symbol(symbol):
            for guard in guards_of_range(symbol, range):
                self._guard(guard)
            return
        origin = symbol.origin
        if isinstance(origin, KnownCount):
            low, high = range.low - origin.added, range.high - origin.added
            self._guard(InRange(origin.source, low, high, symbol.whole))
            return
        source = origin.source if isinstance(origin, InputNumber) else origin
        assert isinstance(source, Source), "a symbol without a hint is never narrowed"
        self._guard(InRange(source, range.low, range.high))

    def _guard_relation(self, op: str, left: Expr, right: Expr) -> None:
        relate = SizesRelate if self._can_relate(left, right) else NumbersRelate
        self._guard(relate(op, left, right))

    def counted(self) -> Iterator[Specialized]:
        """Yield the numbers that tests of `while` loops narrowed to one value, test by test."""
        tests = {symbol: at for (symbol, at), steps in self.narrowed_at.items() if len(steps) > 1}
        for symbol, at in tests.items():
            range = self.range_of(symbol)
            if range is not None and range.low == range.high:
                yield specialized(symbol, "the trip count of a loop", None, at)

    def forget(self) -> None:
        """Release the references to the call: sizes outlive the trace."""
        self.owners, self.values, self.sampled, self._dynamic = {}, {}, {}, None
        self.results, self.read_from, self.read_sizes = {}, {}, {}
        self._guard, self._relate, self._loop_test = _too_late, None, lambda symbol: None

    def _can_relate(self, left: Expr, right: Expr) -> bool:
        """Return whether native guards can compare the two: they have 64-bit ints only."""
        symbols = (*symbols_of(left), *symbols_of(right))
        return self.are_sizes(symbols) and is_integral(left) and is_integral(right)

    def _can_compute(self, left: Expr, right: Expr) -> bool:
        """Return whether guards can compute both, which excludes numbers drawn after the guards."""
        return all(
            is_computable(side, lambda s: _is_given(s.origin), self.range_of)
            for side in (left, right)
        )

    def is_given_or_computed(self, expr: Expr) -> bool:
        """Return whether emitted code can compute it before the graph, from numbers it reads."""

        def is_read(symbol: Symbol) -> bool:
            return _is_given(symbol.origin) and symbol.origin in self.values

        return is_computable(expr, is_read, self.range_of)

    @staticmethod
    def are_sizes(symbols: Iterable[Symbol]) -> bool:
        """Return whether these are ints of the call: sizes, or numbers."""
        return all(
            is_tensor_symbol(symbol) or (symbol.kind is int and isinstance(symbol.origin, Source))
            for symbol in symbols
        )

    def data_size(self, least: int, most: int, where: UserLine) -> Size | None:
        """Return a new data-dependent (unbacked) size; None if its value must be known."""
        origin = DataSize(self.count_of(DataSize), where)
        # An earlier attempt needed the value of this one.
        if origin in self.constants:
            return None
        symbol = Symbol(f"u{origin.number}", int, Interval(least, most), origin)
        self.add(symbol, None, min(max(most // 2 | 1, 2), most, max(least, _EXAMPLE)))
        return Size(symbol, self)

    def varying_dims(self, source: Source, tensor: torch.Tensor) -> dict[int, Interval]:
        """Return the sizes and strides of an input that become symbols, by index, with ranges."""
        if self._dynamic is None:
            return {}
        self.has_ones = self.has_ones or self._dynamic.has_ones(source, tensor)
        found = {}
        asked = {**self.implied.get(source, {}), **self._dynamic.of(source, tensor)}
        for place, range in sorted(asked.items()):
            least = 0 if isinstance(range, UnbackedRange) else SMALLEST
            limits = range.narrowed(Interval(least, LARGEST)) if place >= 0 else STRIDES
            now = tensor.shape[place] if place >= 0 else tensor.stride(stride_place(place))
            if limits.has(now) and origin_at(source, place) not in self.constants:
                found[place] = limits
        return found

    def shared_symbol(self, own: Symbol, hint: int) -> Symbol:
        """Return the symbol that all sizes share which are equal now and in earlier calls."""
        history, at_break = self._history(own, hint)
        for symbol, (other, size) in self.sizes.items():
            apart = at_break is not None and size is not None and not is_same(at_break, size)
            if other == history and not apart:
                return symbol
        self.sizes[own] = history, at_break
        return own

    def _history(self, own: Symbol, hint: int) -> tuple[Hashable, Size | None]:
        """Return the values of a size now and in earlier calls, and its symbol at the break."""
        origin: Any = own.origin
        if self._dynamic is None:
            return (hint, own.range), None
        place = origin.dim if isinstance(origin, SizeOf) else stride_place(origin.dim)
        earlier = self._dynamic.in_variants(origin.source, place)
        at_break = self._dynamic.facts.size_at(origin.source, place)
        if isinstance(origin, SizeOf) and origin.unbacked:
            known = earlier or at_break is not None
            if not origin.growing or not known:  # its value in this call proves nothing
                return own, None
        return (hint, own.range, earlier), at_break


def _is_given(origin: Hashable) -> bool:
    """Return whether a number exists before the guards run."""
    return isinstance(origin, Source) and not isinstance(origin, Drawn)


def _too_late(*guards: Guard) -> NoReturn:
    raise AssertionError(f"guards after the end of the trace: {guards}")


def undecided_reason(
    special: Specialize, speculates_in: Callable[[str], bool] | None = None
) -> Reason | None:
    """Return the break for hintless sizes whose value is needed.

    None: other symbols can become constants, or the value is speculated
    (trace/values/numbers/speculation.py).
    """
    if not special.symbols or not all(map(hintless, special.symbols)):
        return None
    symbol = special.symbols[0]
    if isinstance(symbol.origin, SizeOf):
        return UnbackedSize.of(size=size_name(symbol), why=special.why)
    where: Any = symbol.origin.where  # type: ignore[attr-defined]
    if speculates_in is not None and speculates_in(where.filename):
        return None
    what = f"of line {where.lineno}, `{where.text}`"
    return DataDecidesSize.of(what=what, why=special.why)


def without_symbolic_sizes(known: Constants, symbols: Symbols, error: Exception) -> Constants:
    """Return the constants that leave no symbolic sizes; raises `error` if there were none."""
    if not symbols.sizes:
        raise error
    why = f"{type(error).__name__}: {error}".partition("\n")[0]
    fresh = {s.origin: specialized(s, why, symbols.where) for s in symbols.sizes}
    return {**known, **fresh}


def with_constants(
    known: Constants, special: Specialize, where: UserLine | None, at: int
) -> Constants:
    """Return the constants of the next attempt; `at`: the root's instruction that needs them."""
    symbols = [s for s in special.symbols if not hintless(s)]
    loop = at if special.is_trip_count else None
    fresh = {s.origin: specialized(s, special.why, where, loop) for s in symbols or special.symbols}
    assert fresh.keys() - known.keys(), "a symbol becomes a constant once"
    return {**known, **fresh}


def specialized(
    symbol: Symbol, why: str, where: UserLine | None, loop: int | None = None
) -> Specialized:
    """Return the record of a symbol that has to be a constant."""
    name = size_name(symbol) if is_tensor_symbol(symbol) else symbol.name
    return Specialized(symbol.origin, name, why, where, loop)
