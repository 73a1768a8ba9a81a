"""symbols: reports dynamic sizes and numbers of a trace, and those that were specialised.

Input: a Trace. Output: a SymbolReport for each size and number, and the same as lines of text, with
the user's line that reads it or that made it a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...errors import UserLine
from ...guards.guard import InRange, SizesRelate, TensorMatch
from ...guards.sizes import relation, size_name
from ...guards.source import describe
from ...symbols.expr import Integer
from ...symbols.interval import ANY_FLOAT, INT64, Interval
from ...symbols.size import SizeOf, StrideOf
from ...symbols.symbolic_numbers import Symbol
from ...trace.result import Trace
from ...trace.varying.concrete import data_symbols, places_of
from ..words import here
from .findings import SymbolReport

__all__ = ["changing", "symbol_reports"]

_KINDS = {SizeOf: "size", StrideOf: "stride"}


def symbol_reports(traced: Trace) -> list[SymbolReport]:
    """Return a report for each symbol: specialised ones, sizes, numbers, data-dependent sizes."""
    constants = [
        SymbolReport(
            constant.name,
            _KINDS.get(type(constant.origin), "number"),
            specialized=constant.why,
            where=constant.where,
        )
        for constant in traced.specialized
    ]
    of_data = [SymbolReport(s.name, "size", s.range, where=_line(s)) for s in data_symbols(traced)]
    return [*constants, *_size_reports(traced), *_number_reports(traced), *of_data]


def _line(symbol: Symbol) -> UserLine | None:
    """Return the line of the operation with a data-dependent output size."""
    where: UserLine | None = symbol.origin.where  # type: ignore[attr-defined]
    return where


def _size_reports(traced: Trace) -> Iterator[SymbolReport]:
    relations = [guard for guard in traced.guards if isinstance(guard, SizesRelate)]
    limits = {end for symbol in places_of(traced) for end in symbol.limits}
    symbols: dict[object, Symbol] = {}  # by origin; equal dimensions share one symbol
    for guard in relations:
        if isinstance(guard.left, Symbol):
            shared = guard.op == "==" and isinstance(guard.right, Symbol)
            symbols.setdefault(guard.left.origin, guard.right if shared else guard.left)  # type: ignore[arg-type]
    for match in (guard for guard in traced.guards if isinstance(guard, TensorMatch)):
        for dim in match.free_sizes:
            origin = SizeOf(match.source, dim)
            symbol = symbols[origin]
            own = [guard for guard in relations if symbol in guard.symbols]
            shown = [g for g in own if not _is_given(g, limits) or _equates(g, origin)]
            yield SymbolReport(
                f"{describe(match.source)}.shape[{dim}]",
                "size",
                _range_of(symbol, own),
                tuple((relation(guard), guard.where) for guard in shown),
                where=match.where,
            )
    for symbol in places_of(traced):
        if isinstance(symbol.origin, StrideOf):
            own = [guard for guard in relations if symbol in guard.symbols]
            asked = ((relation(g), g.where) for g in own if not _is_given(g, limits))
            yield SymbolReport(size_name(symbol), "stride", symbol.range, tuple(asked))


def _equates(guard: SizesRelate, origin: SizeOf) -> bool:
    """Return whether the guard equates this size with another one."""
    return guard.op == "==" and getattr(guard.left, "origin", None) == origin


def _range_of(symbol: Symbol, relations: Iterable[SizesRelate]) -> Interval:
    """Return the initial range of a size, narrowed by the guards."""
    range_ = symbol.range
    for guard in relations:
        if guard.left is symbol and isinstance(guard.right, Integer):
            low = guard.right.value if guard.op in (">=", "==") else range_.low
            high = guard.right.value if guard.op in ("<=", "==") else range_.high
            range_ = range_.narrowed(Interval(low, high))
    return range_


def _number_reports(traced: Trace) -> Iterator[SymbolReport]:
    ranges = {g.source: Interval(g.low, g.high) for g in traced.guards if isinstance(g, InRange)}
    relations = [guard for guard in traced.guards if isinstance(guard, SizesRelate)]
    for entry in traced.inputs:
        if entry.is_scalar:
            kind = "float" if entry.spec.dtype.is_floating_point else "int"
            range = ranges.get(entry.source, ANY_FLOAT if kind == "float" else INT64)
            own = (g for g in relations if any(s.origin == entry.source for s in g.symbols))
            asked = tuple((relation(guard), guard.where) for guard in own)
            yield SymbolReport(describe(entry.source), kind, range, asked)


def changing(traced: Trace) -> list[str]:
    """Return a line for each symbol: specialised ones, sizes, numbers, data-dependent sizes."""
    constants = [
        f"{constant.name}: a constant, for {constant.why}{_at(constant.where)}"
        for constant in traced.specialized
    ]
    of_data = [
        f"{s.name}: a data-dependent size, {s.limits[0]} to {s.limits[1]}{_at(_line(s))}"
        for s in data_symbols(traced)
    ]
    return [*constants, *_sizes(traced), *_numbers(traced), *of_data]


def _at(where: UserLine | None) -> str:
    return f" ({here(where)})" if where else ""


def _sizes(traced: Trace) -> Iterator[str]:
    for guard in traced.guards:
        if isinstance(guard, TensorMatch):
            for dim in guard.free_sizes:
                yield f"{describe(guard.source)}.shape[{dim}]: a symbol{_at(guard.where)}"
    for symbol in places_of(traced):
        if isinstance(symbol.origin, StrideOf):
            yield f"{size_name(symbol)}: a symbol"
    limits = {end for symbol in places_of(traced) for end in symbol.limits}
    for guard in traced.guards:
        if isinstance(guard, SizesRelate) and not _is_given(guard, limits):
            yield f"only where {relation(guard)}{_at(guard.where)}"


def _is_given(guard: SizesRelate, limits: set[int]) -> bool:
    """Return whether a guard was added without a line of user code that needs it.

    Such guards state the initial range of a symbol, that two sizes share it, or a stride.
    """
    left, right = guard.left, guard.right
    if isinstance(left, Symbol):
        return guard.op == "==" or getattr(right, "value", None) in limits
    return False


def _numbers(traced: Trace) -> Iterator[str]:
    for entry in traced.inputs:
        if entry.is_scalar:
            kind = "a float" if entry.spec.dtype.is_floating_point else "an int"
            yield f"{describe(entry.source)}: {kind}, data of the graph"
