"""Defines Context, the assumptions of one trace about its symbols, as in torch's ShapeEnv.

In: symbols with their values in this call (hints), and questions. Out: answers that hold for every
call that passes the guards. `decide` answers a comparison from the ranges of the symbols; if they
leave it open, it answers by the hints and narrows the ranges until they imply the answer. `require`
narrows them until an expression stays in an interval. Each narrowing is passed to `assume`, which
adds a guard on the user's line. If no range of a ladder around the hint works, Specialize is
raised: the trace starts again with that symbol as a constant.

Ranges only get narrower, so earlier answers stay true.

A data-dependent or unbacked size has no hint, and no branch may depend on its value. It has an
example, used for choices that are correct at any value: layouts to try, kernels to tune.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .context_facts import ContextFacts
from .expr import Expr, Integer, add, linear, mul
from .interval import EXACT, INT64, MANY, Interval, farthest
from .narrowing import FLOAT_LADDER, INT_LADDER, comparing_with, reach, solved_for
from .symbolic_numbers import Number, Symbol, evaluate, interval_of, symbols_of

__all__ = ["COMPARISONS", "SWAPPED", "Context", "Specialize", "holds_for", "is_true_of"]

_ORDERINGS = ("<", "<=", ">", ">=")
SWAPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_OPPOSITE = {"<": ">=", ">": "<=", "<=": ">", ">=": "<", "==": "!=", "!=": "=="}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def holds_for(op: str, left: Expr, right: Expr, values: dict[Expr, Any]) -> bool:
    """Return `left op right` for these values of the symbols."""
    return bool(COMPARISONS[op](evaluate(left, values), evaluate(right, values)))


def is_true_of(op: str, left: Expr, right: Expr, values: dict[Expr, object]) -> bool:
    """Return `holds_for` at later values, and False where an operand cannot be computed."""
    try:
        return holds_for(op, left, right, values)
    except (ArithmeticError, ValueError):  # a division by size 0, a root of -1
        return False


def _all_hold(answers: Mapping[tuple[str, Expr, Expr], bool], values: dict[Expr, Any]) -> bool:
    """Return whether the comparisons of symbols in `values` have these answers there."""
    return all(
        holds_for(op, left, right, dict(values)) is answer
        for (op, left, right), answer in answers.items()
        if all(symbol in values for symbol in (*symbols_of(left), *symbols_of(right)))
    )


Ranges = dict[Expr, Interval | None]
Relate = Callable[[str, Expr, Expr], None]


class Specialize(Exception):
    """Raised when symbols have to be constants. `why` names the operation; `is_trip_count` is set
    for a loop that is unrolled.
    """

    def __init__(self, symbols: Iterable[Symbol], why: str, *, is_trip_count: bool = False) -> None:
        super().__init__(why)
        self.symbols = tuple(symbols)
        self.why = why
        self.is_trip_count = is_trip_count


def _refuse(symbol: Symbol, interval: Interval) -> NoReturn:
    raise Specialize((symbol,), "its range was narrowed after the trace")


class Context:
    """The symbols of one trace, their ranges and the relations assumed between them."""

    def __init__(
        self, assume: Callable[[Symbol, Interval], None], relate: Relate | None = None
    ) -> None:
        """`relate` has to guard a relation that no range can express (`s0 == s1`)."""
        self._assume = assume
        self._relate = relate
        self.excludes_sizes = True
        self._related: dict[tuple[str, Expr, Expr], bool] = {}
        self._hints: dict[Expr, float] = {}
        self._examples: dict[Expr, int] = {}  # example sizes of symbols without a hint
        self._values: dict[Expr, float] = {}  # of expressions, by these hints and examples
        # Relations of data-dependent sizes; eager raises unless they hold.
        self.deferred_asserts: dict[tuple[str, Expr, Expr], None] = {}
        self._ranges: Ranges = {}  # of symbols
        self._known: Ranges = {}
        self._refined: Ranges = {}  # of expressions, tighter than symbol ranges give
        # Cached comparisons of sizes; cleared whenever an assumption is added.
        self.answers: dict[tuple[str, Expr, Expr], bool | None] = {}
        self.sampled: dict[Hashable, Any] = {}  # results of calls sampled at several sizes

    def add(self, symbol: Symbol, hint: float | None, example: int | None = None) -> None:
        """Add a symbol of the trace; without a hint its range is never narrowed."""
        self._ranges[symbol] = self._known[symbol] = symbol.range
        self._values = {}
        if hint is not None:
            self._hints[symbol] = hint
        if example is not None:
            self._examples[symbol] = example

    @property
    def facts(self) -> ContextFacts:
        """All that is known, as data."""
        return ContextFacts(
            hints=tuple(self._hints.items()),
            examples=tuple(self._examples.items()),
            ranges=tuple(self._ranges.items()),
            refined=tuple(self._refined.items()),
            related=tuple(self._related.items()),
            deferred_asserts=tuple(self.deferred_asserts),
            excludes_sizes=self.excludes_sizes,
        )

    def report_to(
        self, assume: Callable[[Symbol, Interval], None], relate: Relate | None = None
    ) -> None:
        """Report new assumptions to these functions, as those given to the constructor."""
        self._assume, self._relate = assume, relate

    @classmethod
    def of(cls, facts: ContextFacts) -> Context:
        """Return a Context that knows these facts. Until `report_to` it refuses to assume more."""
        made = cls(_refuse)
        made.excludes_sizes = facts.excludes_sizes
        made._hints, made._examples = dict(facts.hints), dict(facts.examples)
        made._ranges, made._refined = dict(facts.ranges), dict(facts.refined)
        made._related = dict(facts.related)
        made.deferred_asserts = dict.fromkeys(facts.deferred_asserts)
        made._known = made._trial(made._ranges)
        return made

    def defer_assert(self, op: str, left: Expr, right: Expr) -> None:
        """Assume `left op right` of data-dependent sizes, where eager raises otherwise. The owner
        of the size checks it at run time; later code may rely on it.
        """
        self.deferred_asserts[op, left, right] = None
        self.answers.clear()
        self._values = {}
        if (agreeing := self.agreeing({**self._hints, **self._examples})) is not None:
            self._examples.update((symbol, int(agreeing[symbol])) for symbol in self._examples)

    def assuming_equal(self, left: Expr, right: Expr, infer: Callable[[], object]) -> object:
        """Return `infer()` assuming that two are equal; undo that if it returns None."""
        before = dict(self.deferred_asserts), dict(self._examples)
        self.defer_assert("==", left, right)
        if (result := infer()) is None:
            self.deferred_asserts, self._examples = before
            self.answers.clear()
            self._values = {}
        return result

    def is_asserted(self, left: Expr, right: Expr) -> bool:
        """Return whether the trace expects these to be equal: eager raises otherwise."""
        asked = ("==", left, right), ("==", right, left)
        return any(one in self.deferred_asserts for one in asked)

    def agreeing(self, values: dict[Expr, Any]) -> dict[Expr, Any] | None:
        """Return the values with data-dependent sizes changed so that expected equalities hold.
        Returns None if no simple change achieves that.
        """
        made = dict(values)
        for op, left, right in self.deferred_asserts:
            difference = add(left, mul(right, -1))
            if op != "==" or not all(symbol in made for symbol in symbols_of(difference)):
                continue
            apart = int(evaluate(difference, dict(made)))  # evaluate caches into its dict
            if apart and not self._move(made, linear(difference)[1], apart):
                return None
        return made if self._agree(made) else None

    def _move(self, values: dict[Expr, Any], terms: Mapping[Expr, int], apart: int) -> bool:
        """Reduce the sum of the terms by `apart` by changing data-dependent sizes, last first."""
        for symbol, factor in reversed(list(terms.items())):
            known = self._ranges.get(symbol)
            if symbol in self._examples and abs(factor) == 1 and known is not None:
                value = int(min(max(values[symbol] - apart * factor, known.low), known.high))
                apart += factor * (value - values[symbol])
                values[symbol] = value
        return not apart

    def _agree(self, values: dict[Expr, object]) -> bool:
        """Return whether all expected equalities hold at the values."""
        equalities = {asked: True for asked in self.deferred_asserts if asked[0] == "=="}
        return _all_hold(equalities, values)

    def count_of(self, kind: type) -> int:
        """Return the number of symbols whose origin is of this class."""
        return sum(isinstance(one.origin, kind) for one in self._ranges)  # type: ignore[attr-defined]

    def hint_of(self, expr: Expr) -> int:
        """Return the value of an int expression in this call, or at the example."""
        return int(self.value_of(expr))

    def value_of(self, expr: Expr) -> float:
        """Return the value of an expression in this call, or at the example."""
        if (value := self._values.get(expr)) is None:
            if not self._values:
                self._values = {**self._hints, **self._examples}
            value = evaluate(expr, self._values)
        return value

    def has_hints(self, exprs: Iterable[Expr]) -> bool:
        """Return whether this call's values of all symbols in the expressions are known."""
        hints = self._hints
        return all([symbol in hints for expr in exprs for symbol in symbols_of(expr)])

    def of_data(self, expr: Expr) -> bool:
        """Return whether a symbol in it has no hint (a data-dependent or unbacked size)."""
        examples = self._examples
        return bool(examples) and any(symbol in examples for symbol in symbols_of(expr))

    def size_oblivious(self, op: str, left: Expr, right: Expr) -> bool | None:
        """Return `left op right` if the ranges decide it with data-dependent sizes above 1. Used
        for layouts, which are also correct for the other sizes.
        """
        if not self._examples:
            return self.known(op, left, right)
        more = {s: known.narrowed(MANY) for s in self._examples if (known := self._known[s])}
        return self._compared(op, left, right, {**self._known, **more})

    def range_of(self, expr: Expr) -> Interval | None:
        """Return the expression's range over all calls; None if computing it might raise."""
        return interval_of(expr, self._known)

    def known(self, op: str, left: Expr, right: Expr) -> bool | None:
        """Return `left op right` if the ranges decide it."""
        return self._compared(op, left, right, self._known)

    def allows(self, values: dict[Expr, Any]) -> bool:
        """Return whether these values of some symbols satisfy the assumptions so far."""
        ranges = (known.has(value) for s, value in values.items() if (known := self._ranges[s]))
        return all(ranges) and _all_hold(self._related, values)

    # -- questions -------------------------------------------------------------------------------

    def require(self, expr: Expr, wanted: Interval, why: str) -> None:
        """Narrow ranges until the expression stays in an interval and cannot raise."""
        if self._is_within(expr, wanted, self._known):
            return
        symbols = symbols_of(expr)
        found = (*self._solved(expr, wanted), *self._stretched(symbols, expr, wanted))
        for ranges in (*found, *self._rungs(symbols)):
            if self._is_within(expr, wanted, self._trial(ranges)):
                self._narrow(ranges)
                return
        raise Specialize(symbols, why)

    def decide(self, op: str, left: Expr, right: Expr, ints_by_steps: bool = True) -> bool:
        """Return `left op right`, and guard the answer. `ints_by_steps` allows narrowing an int to
        values at which a formula of it decides, as the last resort.
        """

        # Most questions are repeated: a traced LSTM loop asks 537 times, of which 28 are distinct.
        if (answer := self._related.get((op, left, right))) is not None:
            return answer
        if (answer := self._compared(op, left, right, self._known)) is not None:
            return answer
        symbols = list(dict.fromkeys((*symbols_of(left), *symbols_of(right))))
        if not all(symbol in self._hints for symbol in symbols):
            raise Specialize(symbols, f"comparison {op}")
        values = dict(self._hints)
        answer = holds_for(op, left, right, values)
        holds = op if answer else _OPPOSITE[op]
        can_relate = self._can_relate(left, right)
        if holds == "!=" and can_relate:  # a range excludes all numbers on one side
            return self._add_relation(holds, op, left, right)
        sides, rungs = self._sides(holds, left, right), self._rungs(symbols)
        if not can_relate and self._can_compute(left, right):
            can_relate = holds_for(holds, left, right, dict(self._hints))  # with nan both are false
            if op in _ORDERINGS:  # such ranges would hold in few later calls
                rungs = iter(())
        for ranges in (*sides, *rungs):
            if can_relate and self._pins(symbols, ranges):
                continue  # a guard on the relation is valid for more calls than one value
            if self._compared(op, left, right, self._trial(ranges)) is answer:
                self._narrow(ranges)
                return answer
        if can_relate:
            return self._add_relation(holds, op, left, right)
        is_whole = symbols[0].whole or (ints_by_steps and symbols[0].kind is int)
        if is_whole and self._narrow_by_steps(symbols, op, left, right, answer):
            return answer
        raise Specialize(symbols[-1:], f"comparison {op}")

    def _pins(self, symbols: Sequence[Symbol], ranges: Ranges) -> bool:
        """Return whether the ranges fix one of several symbols to a single value."""
        pinned = (s for s in symbols if (new := ranges[s]) and new.low == new.high)
        return len(symbols) > 1 and any(self._ranges[s] != ranges[s] for s in pinned)

    def assume_range(self, expr: Expr, limits: Interval) -> None:
        """Record a range of an expression that the caller has guarded."""
        self._refined[expr] = self._known[expr] = limits
        self.answers.clear()

    def assume_relation(self, op: str, left: Expr, right: Expr) -> None:
        """Record a relation of ints that the caller has guarded."""
        self._related[op, left, right] = True
        self._related[_OPPOSITE[op], left, right] = False
        offset, terms = linear(add(left, mul(right, -1)))
        if len(terms) < 2 or op == "!=":  # the range of a symbol says it, or no range can
            return
        # Both signs: `s0 - s1` and `s1 - s0` are different expressions to `interval_of`.
        for sign, way in ((1, op), (-1, SWAPPED[op])):
            expr = add(mul(add(left, mul(right, -1)), sign), Integer(-offset * sign))
            [side] = comparing_with(way, -offset * sign, is_int=True)
            if (before := self.range_of(expr)) is not None:
                self.assume_range(expr, before.narrowed(side))

    def may_assume(self, op: str, left: Expr, right: Expr) -> bool:
        """Return whether a faster variant may assume `left op right`. Where a relation can be
        guarded, ranges are narrowed no further than that. A False answer needs no guard.
        """
        if (answer := self._compared(op, left, right, self._known)) is not None:
            return answer
        if not self.excludes_sizes or not holds_for(op, left, right, dict(self._hints)):
            return False
        if (op, left, right) in self._related or not self._can_relate(left, right):
            return self.decide(op, left, right)
        return self._add_relation(op, op, left, right)

    def _can_relate(self, left: Expr, right: Expr) -> bool:
        """Return whether a relation between these can be guarded."""
        return self._relate is not None

    def _can_compute(self, left: Expr, right: Expr) -> bool:
        """Return whether guards can compute both sides as floats."""
        return False

    def _add_relation(self, holds: str, op: str, left: Expr, right: Expr) -> bool:
        assert self._relate is not None
        self._relate(holds, left, right)
        self._related[op, left, right] = holds == op
        self._refine_side(holds, left, right)
        return holds == op

    def specialize(self, symbols: Iterable[Symbol], why: str) -> NoReturn:
        """Make these symbols constants: the trace starts again."""
        raise Specialize(symbols, why)

    def _refine_side(self, op: str, left: Expr, right: Expr) -> None:
        """Narrow the range of the side that a float relation compares with a number."""
        if isinstance(left, Integer | Number):
            left, right, op = right, left, SWAPPED[op]
        before = self._known.get(left)
        if isinstance(right, Number) and before is not None and op != "!=":
            [side] = comparing_with(op, right.value, is_int=False)
            self._refined[left] = self._known[left] = before.narrowed(side)

    # -- answers ---------------------------------------------------------------------------------

    @staticmethod
    def _is_within(expr: Expr, wanted: Interval, known: Ranges) -> bool:
        found = interval_of(expr, known)
        return found is not None and found.within(wanted)

    @staticmethod
    def _compared(op: str, left: Expr, right: Expr, known: Ranges) -> bool | None:
        a, b = interval_of(left, known), interval_of(right, known)
        return None if a is None or b is None else a.compare(op, b)

    # -- narrowing -------------------------------------------------------------------------------

    def _trial(self, ranges: Ranges) -> Ranges:
        return {**ranges, **self._refined}

    def _narrow(self, ranges: Ranges) -> None:
        for symbol, before in list(self._ranges.items()):
            new = ranges[symbol]
            if new is not None and new != before:
                assert isinstance(symbol, Symbol)
                self._ranges[symbol] = new
                self._assume(symbol, new)
        self._known = self._trial(self._ranges)
        self.answers.clear()

    def _with(self, symbol: Symbol, wanted: Interval) -> Ranges | None:
        """Return the ranges with one of them narrowed, if it still contains the hint."""
        hint = self._hints.get(symbol)
        known = self._ranges[symbol]
        if hint is None or known is None or not (narrowed := known.narrowed(wanted)).has(hint):
            return None
        return {**self._ranges, symbol: narrowed}

    def _rungs(self, symbols: Sequence[Symbol]) -> Iterator[Ranges]:
        """Yield ranges of one symbol down its ladder, then of the next, then of all together."""
        ladders: dict[Expr, list[Interval | None]] = {}
        for symbol in symbols:
            ladder = INT_LADDER if symbol.kind is int else FLOAT_LADDER
            found = [known[symbol] for rung in ladder if (known := self._with(symbol, rung))]
            ladders[symbol] = found or [self._ranges[symbol]]
        now = self._ranges
        picks = [
            tuple([rung if each is symbol else now[each] for each in ladders])
            for symbol in (symbols if len(symbols) > 1 else ())
            for rung in ladders[symbol]
        ]
        for step in range(max(map(len, ladders.values()), default=0)):
            picks.append(tuple([each[min(step, len(each) - 1)] for each in ladders.values()]))
        for picked in dict.fromkeys(picks):  # sizes stay on one rung for long: skip duplicates
            yield {**now, **dict(zip(ladders, picked, strict=True))}

    def _narrow_by_steps(
        self, symbols: Sequence[Symbol], op: str, left: Expr, right: Expr, answer: bool
    ) -> bool:
        """Narrow a whole number to a union of short ranges that each decide the comparison. Over a
        long range the interval of a formula is too wide to decide. The union is remembered for the
        formula.
        """
        symbol, limits = symbols[0], self._ranges[symbols[0]]
        if len(symbols) > 1 or limits is None or isinstance(left, Symbol):
            return False
        found: list[Interval] = []

        def decides(low: float, high: float) -> bool:
            known = {**self._ranges, symbol: Interval(low, high)}
            if self._compared(op, left, right, known) is not answer:
                return False
            found.append(known[left])  # type: ignore[arg-type]
            return True

        hint = self._hints[symbol]
        if not decides(hint, hint):
            return False
        low = -reach(-hint, -limits.low, lambda a, b: decides(-b, -a))
        high = reach(hint, limits.high, decides)
        self._refined[left] = Interval(
            min(part.low for part in found),
            max(part.high for part in found),
            any(part.nan for part in found),
        )
        self._narrow({**self._ranges, symbol: Interval(low, high)})
        return True

    def _solved(self, expr: Expr, wanted: Interval) -> Iterator[Ranges]:
        """Yield the exact range if the expression is a symbol, or multiple + constant of an int."""
        if isinstance(expr, Symbol) and expr.kind is float:
            symbol, limits = expr, wanted
        else:
            offset, terms = linear(expr)
            symbol_, factor = next(iter(terms.items()), (None, 0))
            if len(terms) != 1 or not isinstance(symbol_, Symbol) or symbol_.kind is not int:
                return
            symbol, limits = symbol_, solved_for(wanted, offset, factor)
            if not limits.within(EXACT) and not INT64.within(limits):
                limits = limits.narrowed(EXACT)  # guards compare as floats
        if (ranges := self._with(symbol, limits)) is not None:
            yield ranges

    def _stretched(
        self, symbols: Sequence[Symbol], expr: Expr, wanted: Interval
    ) -> Iterator[Ranges]:
        """Yield the widest range of one float, around its hint, that keeps the expression in
        `wanted`. Intervals of subranges are contained in those of the whole range, so bisection
        finds it.
        """
        if len(set(symbols)) != 1 or symbols[0].kind is not float or expr is symbols[0]:
            return
        symbol, limits = symbols[0], self._ranges[symbols[0]]
        hint = self._hints.get(symbol)
        if hint is None or limits is None or not math.isfinite(hint):
            return

        def keeps(low: float, high: float) -> bool:
            return self._is_within(
                expr, wanted, self._trial({**self._ranges, symbol: Interval(low, high)})
            )

        if not keeps(hint, hint):
            return
        high = farthest(hint, limits.high, lambda end: keeps(hint, end))
        low = -farthest(-hint, -limits.low, lambda end: keeps(-end, high))
        if (ranges := self._with(symbol, Interval(low, high))) is not None:
            yield ranges

    def _sides(self, op: str, left: Expr, right: Expr) -> Iterator[Ranges]:
        """Yield ranges that imply `left op right`, if one side is constant or both are ints."""
        if isinstance(left, Integer | Number):
            left, right, op = right, left, SWAPPED[op]
        if not isinstance(right, Integer | Number):
            left, right = add(left, mul(right, -1)), Integer(0)
        if right.value != right.value:  # type: ignore[attr-defined]
            return
        kinds = {symbol.kind for symbol in symbols_of(left)}
        for interval in comparing_with(op, right.value, is_int=kinds == {int}):  # type: ignore[attr-defined]
            yield from self._solved(left, interval)
