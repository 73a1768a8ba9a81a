"""Defines Predicates: conditions on symbols under which code compiled at one size is valid.

In: the symbols of a graph with the values of one call. Out: a Context whose assumptions are data
(ranges and relations), and a test of other values against them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from .context import Context, Specialize
from .expr import Expr, linear
from .interval import MANY, Interval
from .polynomial import written
from .size import Dimension, Size, expr_of, hintless
from .size_programs import Relation, SizeCode, SizeProgram
from .symbolic_numbers import Symbol

__all__ = [
    "Predicates", "checks", "fresh_sizes", "fresh_symbol", "is_fresh", "read_as_ints",
]  # fmt: skip

_COUNT = itertools.count()


class Predicates:
    """The assumptions in `ranges` and `relations`; `context` answers questions and adds to them."""

    def __init__(self, hints: Mapping[Symbol, int], excludes_sizes: bool = True) -> None:
        """`excludes_sizes`: sizes for which another variant is faster may be excluded."""
        self.symbols = tuple(hints)
        self.ranges: dict[Symbol, Interval] = {symbol: symbol.range for symbol in hints}
        self.relations: dict[tuple[str, Expr, Expr], None] = {}
        self._check: SizeProgram | None = None  # compiled at first use
        self.context = Context(self._narrow, self._relate)
        self.context.excludes_sizes = excludes_sizes
        for symbol, hint in hints.items():
            self.context.add(symbol, hint)

    @classmethod
    def of(
        cls,
        context: Context,
        ranges: Iterable[tuple[Symbol, Interval]],
        relations: Iterable[tuple[str, Expr, Expr]],
    ) -> Predicates:
        """Return the predicates with these assumptions of a Context, which reports others to it."""
        made = cls({})
        made.ranges, made.relations = dict(ranges), dict.fromkeys(relations)
        made.symbols, made.context = tuple(made.ranges), context
        context.report_to(made._narrow, made._relate)
        return made

    def _narrow(self, symbol: Symbol, interval: Interval) -> None:
        self.ranges[symbol], self._check = interval, None

    def _relate(self, op: str, left: Expr, right: Expr) -> None:
        self.relations[op, left, right], self._check = None, None

    def holds_for(self, values: tuple[int, ...]) -> bool:
        """Return whether the values, in the order of the symbols, satisfy all assumptions."""
        if self._check is None:
            self._check = checks((self,))
        return self._check.holds(values)

    def write(self, code: SizeCode) -> None:
        """Add the checks of all assumptions so far to a program."""
        code.set_symbols(self.symbols)
        code.require(self.ranges, self.relations)

    def __str__(self) -> str:
        ranges = [
            f"{found.low} <= {symbol.name} <= {found.high}" for symbol, found in self.ranges.items()
        ]
        return ", ".join(
            [*ranges, *(f"{written(a)} {op} {written(b)}" for op, a, b in self.relations)]
        )


def fresh_sizes(
    ranges: Mapping[Symbol, Interval],
    values: Iterable[int],
    fixed: Collection[Symbol] = (),
    *,
    relations: Iterable[Relation] = (),
    renames: bool = False,
    excludes_sizes: bool = True,
    usual_layouts: bool = True,
) -> tuple[Predicates, dict[Expr, Dimension]]:
    """Return predicates on fresh symbols, one for each symbol of `ranges` and valid in that range,
    and the sizes over them. A symbol in `fixed` or with one value in its range becomes an int.

    Symbols of another Context must not be equal to these. `relations` of the old symbols are ones
    that the caller checks; linear ones are known of the new sizes too. `renames` calls the new
    symbols s0, s1, ... `usual_layouts` leaves sizes 0 and 1 to other graphs.
    """
    own: dict[Symbol, int] = {}
    for n, ((symbol, interval), value) in enumerate(zip(ranges.items(), values, strict=True)):
        alone = Interval(value, value)
        if symbol in fixed:
            within = alone
        elif usual_layouts and hintless(symbol):
            # The trace assumes layouts of more than one (`usually`).
            within = interval.narrowed(MANY if MANY.has(value) else alone)
        else:
            within = interval
        name = f"s{n}" if renames else symbol.name
        own[fresh_symbol(name, within, symbol)] = value
    predicates = Predicates(own, excludes_sizes)
    sizes: dict[Expr, Dimension] = {
        symbol: Size(one, predicates.context) if one.range.low < one.range.high else value
        for symbol, (one, value) in zip(ranges, own.items(), strict=True)
    }
    for op, left, right in relations:
        moved = _moved(left, sizes), _moved(right, sizes)
        if None not in moved:
            predicates.context.assume_relation(op, *moved)  # type: ignore[arg-type]
    return predicates, sizes


def fresh_symbol(name: str, range: Interval, stands_for: object) -> Symbol:
    """Return a symbol that equals no other one; `stands_for`: the symbol that it replaces."""
    return Symbol(name, int, range, (stands_for, next(_COUNT)))


def is_fresh(symbol: Symbol) -> bool:
    """Return whether `fresh_symbol` made the symbol."""
    origin = symbol.origin
    return isinstance(origin, tuple) and isinstance(origin[0], Symbol)


def _moved(expr: Expr, sizes: Mapping[Expr, Dimension]) -> Expr | None:
    """Return a linear expression with its symbols replaced by these sizes, else None."""
    constant, terms = linear(expr)
    if not all(symbol in sizes for symbol in terms):
        return None
    return expr_of(sum((sizes[symbol] * n for symbol, n in terms.items()), constant))


def read_as_ints(error: BaseException | None) -> set[Symbol]:
    """Return the symbols for which `fresh_sizes` made those that a stage needs as ints, according
    to the Specialize that caused this error.
    """
    while error is not None and not isinstance(error, Specialize):
        error = error.__cause__
    if error is None:
        return set()
    return {symbol.origin[0] for symbol in error.symbols if is_fresh(symbol)}  # type: ignore[index]


def checks(
    predicates: Sequence[Predicates],
    ranges: Mapping[Symbol, Interval] = MappingProxyType({}),
    relations: Iterable[Relation] = (),
    symbols: Sequence[Symbol] = (),
) -> SizeProgram:
    """Return a program that checks all these predicates, and ranges and relations of `symbols`, on
    values in the order of their symbols.
    """
    code = SizeCode(len(predicates[0].symbols))
    if symbols:
        code.set_symbols(symbols)
    code.require(ranges, relations)
    for each in predicates:
        each.write(code)
    return code.program()
