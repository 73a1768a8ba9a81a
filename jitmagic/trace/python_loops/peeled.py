"""Loop peeling: decides whether the first iteration of a rolled loop joins the graph before it.

Peeling pays if the inputs of the first iteration differ from those of later ones in layout,
autograd history or aliasing. Before the loop of an LSTM, for example, both states are the same
tensor of zeros. Without peeling, the first iteration would need a variant of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ...graph.symbolic.sym_node import as_dimensions
from ...guards.source import Source
from ...spec import TensorSpec
from ..residual.resume import FlatCode
from ..result import Break, Constant, FromGraph, FromSource, Recipe, Trace

__all__ = ["should_peel"]

Found = dict[str, tuple[object, ...]]


def should_peel(flat: FlatCode, before: Trace, after: Trace) -> bool:
    """Return whether the first iteration of the loop that `before` ends at joins the frame's graph.

    It does if `after`, the trace with one iteration, ends at the same head, and the live variables
    there differ from those of `before` in kind, layout or aliasing.
    """
    if not isinstance(before.exit, Break) or not isinstance(after.exit, Break):
        return False
    if before.exit.index != after.exit.index:
        return False
    specs = {entry.source: entry.spec for entry in (*before.inputs, *after.inputs)}
    live = flat.root.live[flat.at[after.exit.index]]
    first, later = (_found(trace, trace.exit, specs, live) for trace in (before, after))  # type: ignore[arg-type]
    return first != later


def _found(
    trace: Trace, exit_: Break, specs: Mapping[Source, TensorSpec], live: frozenset[str]
) -> Found:
    """Return for each live variable its kind, its layout, and which variable shares its object."""
    results: Any = next(iter(reversed(trace.graph.graph.nodes))).args[0]
    holders: dict[object, str] = {}
    found: Found = {}
    for name, recipe in _variables(exit_):
        if name not in live:
            continue
        match recipe:
            case FromGraph(index) if isinstance(meta := results[index].meta.get("val"), Tensor):
                holder = holders.setdefault(index, name)
                found[name] = (holder, *_layout(meta))
            case FromSource(source) if source in specs:
                holder = holders.setdefault(source, name)
                found[name] = (holder, *_layout(specs[source]))
            case FromSource(source):
                found[name] = (source,)
            case Constant(value):
                found[name] = (type(value),)
            case _:
                found[name] = (type(recipe),)
    return found


def _variables(exit_: Break) -> Iterator[tuple[str, Recipe]]:
    both: tuple[Mapping[str, Recipe], ...] = (exit_.locals, exit_.cells)
    for variables in both:
        yield from variables.items()


def _layout(tensor: Tensor | TensorSpec) -> tuple[object, ...]:
    """Return the properties of a tensor that its guard would fix.

    Sizes are compared as text, because symbols of two traces are never equal.
    """
    shape, stride = (tensor.shape, tensor.stride)
    if isinstance(tensor, Tensor):
        shape, stride = as_dimensions(shape), as_dimensions(tensor.stride())
    return repr(tuple(shape)), repr(tuple(stride)), tensor.dtype, tensor.requires_grad  # type: ignore[arg-type]
