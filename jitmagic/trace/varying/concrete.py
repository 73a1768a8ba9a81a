"""Finds the symbols of a trace, and replaces them by ints or by the Sizes of another Context.

Takes a Trace some of whose inputs have Sizes. Returns their symbols, with ranges and with the
values in the traced call, or the Trace of the same frame with other sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace

from ...graph.node_meta import symbols_in
from ...graph.symbolic.concrete import ScalarInput, Values, sized_graph, spec_at
from ...graph.symbolic.size_nodes import size_in
from ...symbols.expr import Expr
from ...symbols.interval import Interval
from ...symbols.size import DataSize, Size, hint_of, stride_place
from ...symbols.symbolic_numbers import Symbol, symbols_of
from ..result import NOWHERE, GraphInput, InputKind, Trace

__all__ = [
    "data_symbols",
    "expected_of",
    "hints_of",
    "places_of",
    "ranges_of",
    "with_hints",
    "with_sizes",
]


def places_of(traced: Trace) -> dict[Symbol, tuple[int, int]]:
    """Return the symbols in the sizes and strides of inputs, with (input, index) of a reading.

    The index is -1 for an input that is itself an int.
    """
    return {size.expr: place for place, size in _symbols(traced)}  # type: ignore[misc]


def hints_of(traced: Trace) -> tuple[int, ...]:
    """Return the values of these symbols in the call that was traced."""
    return tuple({size.expr: hint_of(size) for _, size in _symbols(traced)}.values())


def with_hints(traced: Trace) -> Trace:
    """Return the trace with the traced call's sizes in its input specs; the graph is unchanged."""
    known: dict[Expr, int] = dict(zip(places_of(traced), hints_of(traced), strict=True))
    inputs = tuple(replace(entry, spec=spec_at(entry.spec, known)) for entry in traced.inputs)
    return replace(traced, inputs=inputs)


def ranges_of(traced: Trace) -> dict[Symbol, Interval]:
    """Return the ranges that the guards allow for these symbols."""
    ranges = {size.expr: size.context.range_of(size.expr) for _, size in _symbols(traced)}
    return {symbol: symbol.range if found is None else found for symbol, found in ranges.items()}  # type: ignore[attr-defined, misc]


def data_symbols(traced: Trace) -> list[Symbol]:
    """Return the data-dependent sizes of the graph."""
    nodes = traced.graph.graph.nodes
    found = dict.fromkeys(symbol for node in nodes for symbol in symbols_in(node))
    return [symbol for symbol in found if isinstance(symbol.origin, DataSize)]


def expected_of(traced: Trace) -> tuple[tuple[str, Expr, Expr], ...]:
    """Return relations between data-dependent sizes; eager raises unless they hold."""
    contexts = {id(size.context): size.context for _, size in _symbols(traced)}
    known = places_of(traced).keys()
    return tuple(
        (op, left, right)
        for context in contexts.values()
        for op, left, right in context.deferred_asserts
        if known >= {*symbols_of(left), *symbols_of(right)}
    )


def _symbols(traced: Trace) -> Iterator[tuple[tuple[int, int], Size]]:
    """Yield each symbol once, with the first position that it is read from."""
    graph = traced.graph.graph
    nodes = list(graph.find_nodes(op="placeholder"))
    specs = [(n, entry.spec) for n, entry in enumerate(traced.inputs)]
    found = [((n, dim), size) for n, spec in specs for dim, size in enumerate(spec.shape)]
    for n, spec in specs:
        found += [((n, stride_place(dim)), step) for dim, step in enumerate(spec.stride)]
    for target in (operator.index, size_in):
        for node in graph.find_nodes(op="call_function", target=target):
            if node.args[0] in nodes:
                found.append(((nodes.index(node.args[0]), -1), node.meta["val"]))
    seen: set[Symbol] = set()
    for place, size in found:
        if isinstance(size, Size) and isinstance(size.expr, Symbol) and size.expr not in seen:
            seen.add(size.expr)
            yield place, size


def with_sizes(traced: Trace, known: Values) -> tuple[Trace, tuple[int | ScalarInput, ...]]:
    """Return the trace with these ints, or Sizes of another Context, for its symbols, and the
    inputs of its graph.

    Only arguments and specs of the graph have them. Raises Specialize if a symbol must be an int.
    """
    graph, kept = sized_graph(traced.graph, known)
    inputs = tuple(_input(traced, place, known) for place in kept)
    # `mutated` has positions of inputs, which move when an input is left out or a number is added.
    mutated = tuple(n for n, place in enumerate(kept) if place in traced.mutated)
    return replace(traced, graph=graph, inputs=inputs, mutated=mutated), kept


def _input(traced: Trace, place: int | ScalarInput, known: Values) -> GraphInput:
    if isinstance(place, ScalarInput):  # computed from the first inputs
        return GraphInput("size", NOWHERE, place.spec, InputKind.SCALAR)
    return replace(traced.inputs[place], spec=spec_at(traced.inputs[place].spec, known))
