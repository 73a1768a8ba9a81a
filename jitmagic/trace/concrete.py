"""A trace of symbolic sizes for one vector of them.

Comes in: a Trace some of whose inputs have Sizes, and a value for each symbol. Goes out: the Trace
of the same frame with ints in their place, and which of the inputs its graph still takes.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.concrete import concrete_graph, spec_at
from ..guards.guard import GlobalState
from ..symbols.expr import Expr
from ..symbols.scalar import Symbol
from ..symbols.size import Size, hint_of
from .result import Trace

__all__ = ["at_sizes", "hints_of", "places_of"]


def places_of(traced: Trace) -> dict[Symbol, tuple[int, int]]:
    """The symbols among the sizes of its inputs: (input, dimension) where each is read."""
    found: dict[Symbol, tuple[int, int]] = {}
    for place, entry in enumerate(traced.inputs):
        for dim, size in enumerate(entry.spec.shape):
            if isinstance(size, Size) and isinstance(size.expr, Symbol):
                found.setdefault(size.expr, (place, dim))
    return found


def hints_of(traced: Trace) -> tuple[int, ...]:
    """The values of these symbols in the call that was traced."""
    places = places_of(traced).values()
    return tuple(hint_of(traced.inputs[place].spec.shape[dim]) for place, dim in places)


def at_sizes(traced: Trace, values: tuple[int, ...]) -> tuple[Trace, tuple[int, ...]]:
    """The trace with these values of `places_of(traced)`. Raises CompileFailed where the graph is
    not the one that would have been traced.
    """
    known: dict[Expr, int] = dict(zip(places_of(traced), values, strict=True))
    state = next(guard.facts for guard in traced.guards if isinstance(guard, GlobalState))
    graph, kept = concrete_graph(traced.graph, known, state.grad_enabled, traced.name)
    inputs = tuple(
        replace(traced.inputs[place], spec=spec_at(traced.inputs[place].spec, known))
        for place in kept
    )
    mutated = tuple(n for n, place in enumerate(kept) if place in traced.mutated)
    return replace(traced, graph=graph, inputs=inputs, mutated=mutated), kept
