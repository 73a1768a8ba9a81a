"""The numbers of one attempt at a trace that are symbols, and those that turned out to be none.

Comes in: the sources of floats and ints that vary, and what earlier attempts made constants.
Goes out: the Context that values ask, whose narrowings are guards on the user's line; after a
Specialize, the constants of the next attempt. Each attempt that failed adds one, so there are only
as many as there are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ...errors import UserLine
from ...guards.guard import Guard, InRange, NumbersRelate, SizesRelate
from ...guards.sizes import size_name
from ...guards.source import Drawn, Source
from ...symbols.context import Context, Specialize
from ...symbols.expr import Expr
from ...symbols.floats import is_computable
from ...symbols.interval import Interval, UnbackedRange
from ...symbols.polynomial import is_integral
from ...symbols.scalar import Symbol, symbols_of
from ...symbols.size import (
    DataSize,
    Dimension,
    Size,
    SizeOf,
    hintless,
    is_same,
    is_tensor_symbol,
    origin_at,
    stride_place,
)
from ..breaks import DataDecidesSize, Reason, UnbackedSize
from ..result import Specialized
from .symbolic_sizes import LARGEST, SMALLEST, STRIDES, guards_of_range

__all__ = [
    "Constants",
    "Count",
    "DynamicDims",
    "Earlier",
    "InputNumber",
    "KnownCount",
    "Symbols",
    "all_sizes",
    "of_undecided",
    "specialized",
    "with_constants",
]

_EXAMPLE = 61  # of sizes that data decide, where they may be so large
Constants = dict[Hashable, Specialized]
"""By the origins of their symbols."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the size or stride at a place of a tensor was: in the variants there are, of which those
    that differed are not one symbol, and at the break before, where two may have been two symbols.
    """

    in_variants: Callable[[Source, int], tuple[int | None, ...]]
    at_break: Callable[[Source, int], Size | None] = lambda source, place: None

    def sizes(self, source: Source, place: int) -> list[Dimension]:
        """All that is known."""
        known = (*self.in_variants(source, place), self.at_break(source, place))
        return [size for size in known if size is not None]


@dataclass(frozen=True, slots=True)
class DynamicDims:
    """Which sizes and strides of a tensor may vary, by place, and within which range."""

    of: Callable[[Source, torch.Tensor], Mapping[int, Interval]]
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class InputNumber:
    """The origin of a number in a tensor that the call is given: no int that guards relate."""

    source: Source


@dataclass(frozen=True, slots=True)
class Count:
    """The origin of a number that counts in a tensor: which, after so much was added to it."""

    source: Source
    added: int


@dataclass(frozen=True, slots=True)
class KnownCount(Count):
    """One whose value in this call is known, and guarded."""


class Symbols(Context):
    """`varying`: numbers that may be symbols; None: none may, nor user's counters in tensors."""

    def __init__(
        self,
        varying: frozenset[Source] | None,
        constants: Constants,
        guard: Callable[[Guard], None],
        dynamic: DynamicDims | None = None,
    ) -> None:
        super().__init__(self._guard_range, self._guard_relation)
        self.dynamic = dynamic
        self.owners: dict[Expr, tuple[Any, int]] = {}  # of a size: a TensorValue, its dimension
        self.results: Mapping[Expr, tuple[Node, int]] = {}  # where data's sizes are read off
        self.read_from: dict[Symbol, Node] = {}  # the tensors of numbers that data decide
        self.read_sizes: dict[Symbol, Size] = {}  # those that are sizes
        self.sizes: dict[Symbol, tuple[Hashable, Size | None]] = {}  # with their histories
        self.varying, self.constants = varying, constants
        self.values: dict[Source, Any] = {}  # the ScalarValue of each source that was read
        self.where: UserLine | None = None  # of the Specialize that ends the attempt
        # An instruction of the root that narrowed a symbol, and the steps at which it did.
        self.rounds: dict[tuple[Symbol, int], set[int]] = {}
        self.place: Callable[[Symbol], tuple[int, int] | None] = lambda symbol: None
        self._guard = guard

    def _guard_range(self, symbol: Symbol, range: Interval) -> None:
        if (place := self.place(symbol)) is not None:
            at, step = place
            self.rounds.setdefault((symbol, at), set()).add(step)
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
        """The numbers that tests of `while` loops left a single value, round by round."""
        for symbol in {symbol: None for (symbol, _), at in self.rounds.items() if len(at) > 1}:
            range = self.range_of(symbol)
            if range is not None and range.low == range.high:
                yield specialized(symbol, "the number of rounds of a loop", None, True)

    def forget(self) -> None:
        """No more questions: sizes outlive the trace, what the call was given does not."""
        self.owners, self.values, self.sampled, self.dynamic = {}, {}, {}, None
        self.results, self.read_from, self.read_sizes = {}, {}, {}
        self._guard, self._relate = _too_late, None

    def _can_relate(self, left: Expr, right: Expr) -> bool:
        """Native guards compute with 64-bit ints: no floats, no roundings of them."""
        symbols = (*symbols_of(left), *symbols_of(right))
        return self.are_sizes(symbols) and is_integral(left) and is_integral(right)

    def _can_compute(self, left: Expr, right: Expr) -> bool:
        """Nor numbers that are there only when the guards have passed."""
        return all(
            is_computable(side, lambda s: _is_given(s.origin), self.range_of)
            for side in (left, right)
        )

    def is_given_or_computed(self, expr: Expr) -> bool:
        """Whether Python can compute it before the graph runs, of numbers that were read."""

        def is_read(symbol: Symbol) -> bool:
            return _is_given(symbol.origin) and symbol.origin in self.values

        return is_computable(expr, is_read, self.range_of)

    @staticmethod
    def are_sizes(symbols: Iterable[Symbol]) -> bool:
        """Whether these are ints that a call of the frame is given: sizes, or numbers."""
        return all(
            is_tensor_symbol(symbol) or (symbol.kind is int and isinstance(symbol.origin, Source))
            for symbol in symbols
        )

    def data_size(self, least: int, most: int, where: UserLine) -> Size | None:
        """A size that data decide, in these limits; None: it has to be known."""
        origin = DataSize(self.count_of(DataSize), where)
        if origin in self.constants:
            return None
        symbol = Symbol(f"u{origin.number}", int, Interval(least, most), origin)
        self.add(symbol, None, min(max(most // 2 | 1, 2), most, max(least, _EXAMPLE)))
        return Size(symbol, self)

    def varying_dims(self, source: Source, tensor: torch.Tensor) -> dict[int, Interval]:
        """The dimensions of an input that become symbols, and the places of strides that may."""
        if self.dynamic is None:
            return {}
        found = {}
        for place, range in self.dynamic.of(source, tensor).items():
            least = 0 if isinstance(range, UnbackedRange) else SMALLEST
            limits = range.narrowed(Interval(least, LARGEST)) if place >= 0 else STRIDES
            now = tensor.shape[place] if place >= 0 else tensor.stride(stride_place(place))
            if limits.has(now) and origin_at(source, place) not in self.constants:
                found[place] = limits
        return found

    def shared_symbol(self, own: Symbol, hint: int) -> Symbol:
        """The symbol of all sizes that are equal and always were."""
        history, at_break = self._history(own, hint)
        for symbol, (other, size) in self.sizes.items():
            apart = at_break is not None and size is not None and not is_same(at_break, size)
            if other == history and not apart:
                return symbol
        self.sizes[own] = history, at_break
        return own

    def _history(self, own: Symbol, hint: int) -> tuple[Hashable, Size | None]:
        """What it is and was in calls, and at the break before."""
        origin: Any = own.origin
        if self.dynamic is None:
            return (hint, own.range), None
        place = origin.dim if isinstance(origin, SizeOf) else stride_place(origin.dim)
        earlier = self.dynamic.earlier.in_variants(origin.source, place)
        at_break = self.dynamic.earlier.at_break(origin.source, place)
        if isinstance(origin, SizeOf) and origin.unbacked:
            known = earlier or at_break is not None
            if not origin.growing or not known:  # this call says nothing of it
                return own, None
        return (hint, own.range, earlier), at_break


def _is_given(origin: Hashable) -> bool:
    """Whether a number is there before the guards are asked."""
    return isinstance(origin, Source) and not isinstance(origin, Drawn)


def _too_late(*guards: Guard) -> NoReturn:
    raise AssertionError(f"guards behind the end of the trace: {guards}")


def of_undecided(
    special: Specialize, foresees: Callable[[str], bool] | None = None
) -> Reason | None:
    """Why sizes by which nothing may be decided end the graph; None: others can be constants, or
    what makes them tells them (trace/values/numbers/speculation.py).
    """
    if not special.symbols or not all(map(hintless, special.symbols)):
        return None
    symbol = special.symbols[0]
    if isinstance(symbol.origin, SizeOf):
        return UnbackedSize.of(size=size_name(symbol), why=special.why)
    where: Any = symbol.origin.where  # type: ignore[attr-defined]
    if foresees is not None and foresees(where.filename):
        return None
    what = f"of line {where.lineno}, `{where.text}`"
    return DataDecidesSize.of(what=what, why=special.why)


def all_sizes(known: Constants, symbols: Symbols, error: Exception) -> Constants:
    """The next attempt has no sizes that are symbols. Raises the error where this one had none."""
    if not symbols.sizes:
        raise error
    why = f"{type(error).__name__}: {error}".partition("\n")[0]
    fresh = {s.origin: specialized(s, why, symbols.where) for s in symbols.sizes}
    return {**known, **fresh}


def with_constants(known: Constants, special: Specialize, where: UserLine | None) -> Constants:
    """Those of the next attempt."""
    symbols = [s for s in special.symbols if not hintless(s)]
    rounds = special.counts_rounds
    fresh = {
        s.origin: specialized(s, special.why, where, rounds) for s in symbols or special.symbols
    }
    assert fresh.keys() - known.keys(), "a symbol becomes a constant once"
    return {**known, **fresh}


def specialized(
    symbol: Symbol, why: str, where: UserLine | None, counts_rounds: bool = False
) -> Specialized:
    """What is remembered of a symbol that has to be a constant."""
    name = size_name(symbol) if is_tensor_symbol(symbol) else symbol.name
    return Specialized(symbol.origin, name, why, where, counts_rounds)
