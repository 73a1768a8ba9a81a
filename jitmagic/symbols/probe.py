"""Learns facts by trying: one type of answer, one choice of examples, one search for formulas.

Some facts are only found by running code: whether a kernel accepts a number, how a result's sizes
follow from those of the arguments, which function of a number an operator gets. The modules that
ask such a question run the code; this one chooses the examples, finds the formula that gives the
results seen at all of them, and keeps the answers.

Sizes are examples around those of the call, chosen to have several remainders of division; floats
have random digits, so that no program contains them, and come from each region between the values
that code compares with. A formula is accepted only if it holds at every example: formulas that
agree at two small numbers are common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from typing import Any, Literal

from ..lazy_dataclass import dataclass
from .context import Context
from .expr import Expr, Integer, add, floordiv, mul
from .interval import Interval
from .polynomial import product
from .symbolic_numbers import Apply, Number, Symbol, evaluate

__all__ = [
    "FEWEST", "MAX_FLOAT", "OPEN_REGIONS", "REGIONS", "Answers", "Asked", "Formulas", "SizeValues",
    "Verdict", "floats_in", "is_same_float", "note", "noting", "other_size_tuples", "read_float",
    "size_tuples", "size_tuples_in_other_orders", "unlikely_float", "value_at",
]  # fmt: skip

SizeValues = dict[Expr, int]

# -- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a question that was decided by examples.

    It holds, and `found` is what was learnt; or it fails, for a reason, at an example; or nothing
    is known, because the question could not be asked.
    """

    outcome: Literal["holds", "fails", "unknown"]
    found: Any = None
    reason: str | Exception = ""
    example: object = None

    @classmethod
    def holds(cls, found: object = None) -> Verdict:
        return cls("holds", found)

    @classmethod
    def fails(cls, reason: str | Exception, example: object = None) -> Verdict:
        return cls("fails", None, reason, example)

    @classmethod
    def unknown(cls, reason: str | Exception) -> Verdict:
        return cls("unknown", None, reason)

    def __str__(self) -> str:
        why = self.reason
        text = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
        where = "" if self.example is None else f"at {self.example}"
        within = f"in {self.found}" if isinstance(self.found, Interval) else ""
        return ", ".join(part for part in (self.outcome, within, where, text) if part)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that a compile asked, for its record. Text only: an answer may hold tensors."""

    question: str
    subject: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question}, {self.subject}: {self.answer}"


class _Thread(local):
    """The record of the compile that runs in this thread, and the answers that it has."""

    def __init__(self) -> None:
        self.asked: list[Asked] | None = None
        self.answers: dict[int, Verdict] = {}


_here = _Thread()


@contextmanager
def noting(asked: list[Asked]) -> Iterator[None]:
    """Append the questions that the block asks, each once."""
    outer = _here.asked, _here.answers
    _here.asked, _here.answers = asked, {}
    try:
        yield
    finally:
        _here.asked, _here.answers = outer


def note(question: str, subject: object, verdict: Verdict) -> Verdict:
    """Add an answer to the record of the compile, and return it."""
    if _here.asked is not None and id(verdict) not in _here.answers:
        _here.answers[id(verdict)] = verdict
        name = getattr(subject, "__name__", None) or str(subject)
        asked = Asked(question, name, str(verdict))
        if asked not in _here.asked:
            _here.asked.append(asked)
    return verdict


class Answers:
    """The answers to one kind of question, cached for the process: the last `most` of them.

    A key must hold all that the answer depends on, and no tensor of the program.
    """

    def __init__(self, question: str, most: int = 4096) -> None:
        self._question, self._most = question, most
        self._known: dict[Hashable, Verdict] = {}
        self._lock = Lock()

    def of(self, subject: object, key: Hashable, ask: Callable[[], Verdict]) -> Verdict:
        """Return the answer of `ask()`, or the cached one."""
        found = self._known.pop(key, None) or ask()
        with self._lock:
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return note(self._question, subject, found)


# -- examples of sizes -----------------------------------------------------------------------------

FEWEST = 4  # size tuples, with which a formula is accepted
# Added to the sizes of this call. They cover all remainders of division by 2, 3 and 4, and several
# multiples of 4 and 16.
_STEPS = (0, 97, 12, 35, 46, 61, 64, 240, 211, 48)
_SMALL_STEPS = (1, 2, 3, 5, 7)  # for data-dependent sizes, whose range may be small
# For numbers that are not sizes: most calls refuse large ones (a kernel larger than the image).
_CLOSE_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, -1)
_APART = 12  # between the steps of two symbols: their values differ, yet may all be even
_LARGEST = 1 << 14  # some calls take time for each element
_FEW = 2


def size_tuples(
    context: Context, symbols: Sequence[Symbol], is_close: bool = False
) -> list[SizeValues]:
    """Return values of the symbols that pass the guards, those of this call first."""
    ranges = {symbol: context.range_of(symbol) for symbol in symbols}
    free = [s for s, limits in ranges.items() if limits is None or limits.low != limits.high]
    hints: SizeValues = {symbol: context.hint_of(symbol) for symbol in symbols}
    steps: Sequence[int] = _CLOSE_STEPS if is_close else _STEPS
    if any(map(context.of_data, symbols)):
        steps = (*_STEPS, *_SMALL_STEPS)

    def tuples(moving: Sequence[Symbol]) -> Iterator[SizeValues]:
        for step in steps if moving else ():
            known = dict(hints)
            if step:
                moved = (_moved(hints[s], step, n, ranges[s]) for n, s in enumerate(moving))
                known.update(zip(moving, moved, strict=True))
            agreeing = context.agreeing(known) if context.deferred_asserts else known
            if agreeing is None or not all(value < _LARGEST for value in agreeing.values()):
                continue
            if context.allows(agreeing):
                yield agreeing

    found = list(tuples(free))
    if len(found) < FEWEST:  # comparisons may leave but few values of one, and many of another
        found = list(tuples([s for s in free if len(list(tuples([s]))) >= FEWEST])) or found
    return found


def _moved(hint: int, step: int, n: int, limits: Interval | None) -> int:
    """Return a size away from the hint, within the range that the guards leave."""
    value = hint + step + _APART * n
    if limits is None or value <= limits.high:
        return value
    low, high = int(limits.low), int(limits.high)
    return low + (step + n) % (high - low + 1)


def size_tuples_in_other_orders(context: Context, hints: SizeValues) -> list[SizeValues]:
    """Return smaller values, and values in other orders, that pass the guards."""
    count = len(hints)
    large = max(hints.values()) + count * _APART
    reordered = [range(2, count + 2), range(count + 1, 1, -1), range(large, 0, -_APART)]
    tuples = [dict(zip(hints, values, strict=False)) for values in reordered]
    return [known for known in tuples if context.allows(known)]


def other_size_tuples(context: Context, symbols: Sequence[Symbol]) -> list[SizeValues]:
    """Return a few values of the symbols that pass the guards: larger than in this call, the
    smallest, at which tensors may be empty, and those in other orders.
    """
    hints: SizeValues = {symbol: context.hint_of(symbol) for symbol in symbols}
    larger = [known for known in size_tuples(context, symbols) if known != hints]
    smallest: SizeValues = dict(hints)
    for symbol in symbols:
        limits = context.range_of(symbol)
        if limits is not None and limits.low >= 0:
            smallest[symbol] = int(limits.low)
    allowed = [smallest] if context.allows(smallest) else []
    return [*larger[:_FEW], *allowed, *size_tuples_in_other_orders(context, hints)]


# -- examples of floats ----------------------------------------------------------------------------

_TINY, MAX_FLOAT = math.ulp(0.0), 1.7976931348623157e308
_BELOW, _ABOVE = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
REGIONS: tuple[tuple[Interval, tuple[float, ...]], ...] = (
    (Interval(-math.inf, -math.inf), (-math.inf,)),
    (Interval(-MAX_FLOAT, -_TINY), (-0.37134182367183743, -2.9172618239812375)),
    (Interval(0.0, 0.0), (0.0, -0.0)),
    (Interval(_TINY, _BELOW), (0.29193846251827364, 0.71376152839471625)),
    (Interval(1.0, 1.0), (1.0,)),
    (Interval(_ABOVE, MAX_FLOAT), (1.6182736451928374, 23.716253948172635)),
    (Interval(math.inf, math.inf), (math.inf,)),
)
"""The regions between the floats that code compares with, in ascending order, with examples."""
OPEN_REGIONS = (1, 3, 5)  # indices of those that are intervals, not single values
_LOW = (0.31830988618379067, 0.14159265358979312, 0.27182818284590452)
_HIGH = (0.69314718055994531, 0.57721566490153286, 0.91596559417721902)
_BETWEEN = 0.0026179938779914941


def floats_in(limits: Interval) -> list[float]:
    """Return floats of an interval, from each of the regions."""
    return [n for _, numbers in REGIONS for n in numbers if limits.has(n)]


def unlikely_float(limits: Interval, count: int, which: int) -> float:
    """Return a float of many digits in the interval; those of other counts differ. The first
    (`which` 0) and the second are on both sides of the constants that code compares with, if the
    interval has both.
    """
    inside = (_LOW, _HIGH)[which][count % 3] + count // 3 * _BETWEEN
    if limits.low <= 0.01 and limits.high >= 0.99:
        return inside
    if 0 <= limits.low < 1e3 and limits.high > limits.low + 1:
        return limits.low + inside
    if limits.low < -4 and limits.high > -1e-6:
        return -inside
    return limits.low + (limits.high - limits.low) * inside


# -- formulas of ints ------------------------------------------------------------------------------

_DIVISORS = (2, 3, 4, 8, 16, 32, 64)  # common divisors of sizes: heads, groups, halves
_NEAR, _PARTS = (-1, 1, -2, 2, -3, 3, -4, 4), (2, 3, 4)  # of windows and strides: `(n + 1) // 2`
_FACTORS = 4  # at most, of a product, without its constant
_FARTHEST = 8  # common offsets: padding, special tokens


class Formulas:
    """Finds the formula of symbols that has the given values at all examples.

    Candidates are `exprs`, expressions that the program is known to contain, then formulas of
    windows and strides, and then `more`; their products, and multiples plus a constant.
    """

    def __init__(
        self, exprs: Iterable[Expr], examples: Sequence[SizeValues], more: Iterable[Expr] = ()
    ) -> None:
        self._examples = [dict(known) for known in examples]  # evaluation adds to them
        symbols = list(examples[0])
        self._known: dict[tuple[int, ...], Expr] = {}
        self._read: dict[tuple[tuple[int, ...], int], Expr | None] = {}
        self._add((*symbols, *exprs))
        # Most sizes are found among the first: the others are evaluated on demand.
        self._waiting: list[Iterable[Expr]] = [_of_windows(symbols), more]

    def read(self, numbers: Sequence[int]) -> Expr | None:
        """Return the formula with these values."""
        found = self._of(tuple(numbers), _FACTORS)
        while found is None and self._waiting:
            self._add(self._waiting.pop(0))
            found = self._of(tuple(numbers), _FACTORS)
        return found

    def _add(self, exprs: Iterable[Expr]) -> None:
        self._read.clear()
        for expr in exprs:
            values = tuple(int(evaluate(expr, known)) for known in self._examples)
            if len(set(values)) > 1 and all(values):
                self._known.setdefault(values, expr)

    def _of(self, numbers: tuple[int, ...], depth: int) -> Expr | None:
        if len(set(numbers)) == 1:
            return Integer(numbers[0])
        if numbers in self._known:
            return self._known[numbers]
        key = numbers, depth
        if key not in self._read:
            self._read[key] = self._product(numbers, depth) or self._sum(numbers)
        return self._read[key]

    def _product(self, numbers: tuple[int, ...], depth: int) -> Expr | None:
        for values, expr in self._known.items() if depth else ():
            if not any(n % v for n, v in zip(numbers, values, strict=True)):
                rest = tuple(n // v for n, v in zip(numbers, values, strict=True))
                if (found := self._of(rest, depth - 1)) is not None:
                    return product(expr, found)
        return None

    def _sum(self, numbers: tuple[int, ...]) -> Expr | None:
        """Return a multiple of a known expression plus a small constant."""
        for values, expr in self._known.items():
            n = next(n for n, value in enumerate(values) if value != values[0])
            times = (numbers[n] - numbers[0]) // (values[n] - values[0])
            apart = numbers[0] - times * values[0]
            pairs = zip(numbers, values, strict=True)
            if abs(apart) <= _FARTHEST and all(a == times * b + apart for a, b in pairs):
                return add(mul(expr, times), Integer(apart))
        return None


def _of_windows(symbols: Sequence[Expr]) -> Iterator[Expr]:
    for symbol in symbols:
        for apart in _NEAR:
            moved = add(symbol, Integer(apart))
            yield from (moved, *(floordiv(moved, part) for part in _PARTS))
    for symbol in symbols:
        yield from (floordiv(symbol, part) for part in _DIVISORS)


# -- formulas of floats ----------------------------------------------------------------------------

Floats = Mapping[Symbol, float]
_ONE = Number(1.0)
_HALF = Number(0.5)


def read_float(values: Sequence[Floats], floats: Sequence[float]) -> Expr | None:
    """Return an expression equal to `floats[n]` at `values[n]`; two samples fix its constant."""
    if all(is_same_float(floats[0], one) for one in floats[1:]):
        return Number(floats[0])
    for expr in _functions(tuple(values[0]), values, floats):
        if all(
            is_same_float(value_at(expr, known), one)
            for known, one in zip(values, floats, strict=True)
        ):
            return expr
    return None


def value_at(expr: Expr, known: Floats) -> float | None:
    """Return the value that Python computes, or None if it raises."""
    try:
        return float(evaluate(expr, dict[Expr, float](known.items())))
    except (ArithmeticError, ValueError):
        return None


def is_same_float(a: float | None, b: float | None) -> bool:
    """Compare bitwise: 0.0 differs from -0.0, and nan equals nan."""
    return a is not None and b is not None and float(a).hex() == float(b).hex()


def _functions(
    symbols: tuple[Symbol, ...], values: Sequence[Floats], floats: Sequence[float]
) -> Iterator[Expr]:
    yield from symbols
    for symbol in symbols:
        yield from _of_one(symbol)
    for symbol in symbols:
        for part in (symbol, *_of_one(symbol)):
            yield from _with_constant(part, values[0], floats[0])
    for first in symbols:
        for second in symbols:
            if first is not second:
                yield from _of_two(first, second)


@cache
def _of_one(x: Symbol) -> tuple[Expr, ...]:
    rest, root = Apply("-", (_ONE, x)), Apply("sqrt", (x,))
    inverse, rounded = Apply("/", (_ONE, x)), Apply("single", (x,))
    plain = (x, rest, inverse, Apply("/", (_ONE, rest)), root, Apply("/", (_ONE, root)))
    others = (
        Apply("*", (x, x)), Apply("/", (_HALF, x)), rounded, Apply("/", (_ONE, rounded)),
        Apply("single", (inverse,)), Apply("neg", (rounded,)),
    )  # fmt: skip
    return (*plain[1:], *(Apply("neg", (one,)) for one in plain), *others)


def _with_constant(part: Expr, known: Floats, result: float) -> Iterator[Expr]:
    value = value_at(part, known)
    if not value or not result:
        return
    for factor in _near(result / value):
        yield Apply("*", (part, Number(factor)))
    for divisor in _near(value / result):
        yield Apply("/", (part, Number(divisor)))
    for term in _near(result - value):
        yield Apply("+", (part, Number(term)))
    for term in _near(result + value):
        yield Apply("-", (Number(term), part))


def _near(number: float) -> Iterator[float]:
    """Yield constants that a program may contain near a computed, hence rounded, number."""
    yield number
    if abs(number) < 2**53:
        yield float(round(number))
        yield float(f"{number:.12g}")


@cache
def _of_two(x: Symbol, y: Symbol) -> tuple[Expr, ...]:
    total, gap = Apply("+", (x, y)), Apply("-", (x, y))
    return (
        total, gap, Apply("*", (x, y)), Apply("/", (x, y)),
        Apply("*", (total, _HALF)), Apply("*", (gap, _HALF)),
    )  # fmt: skip
