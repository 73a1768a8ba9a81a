"""Peeled loops: the first round of a rolled loop, where it finds other things than the later ones.

Comes in: two traces that end at the head of one loop, before its first round and behind it. Goes
out: whether that round left what a round finds. Where it does not (both states of an LSTM are one
tensor of zeros before it, without a history), the trace with the round in it is compiled, and one
variant of the round serves all that are left to Python.
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

__all__ = ["is_peeled"]

Found = dict[str, tuple[object, ...]]


def is_peeled(flat: FlatCode, before: Trace, behind: Trace) -> bool:
    """Whether the first round of the loop that `before` ends at belongs in the frame's own graph:
    `behind` ends there too, and what a round reads is of another kind or lies elsewhere.
    """
    if not isinstance(before.exit, Break) or not isinstance(behind.exit, Break):
        return False
    if before.exit.index != behind.exit.index:
        return False
    specs = {entry.source: entry.spec for entry in (*before.inputs, *behind.inputs)}
    live = flat.root.live[flat.at[behind.exit.index]]
    first, later = (_found(trace, trace.exit, specs, live) for trace in (before, behind))  # type: ignore[arg-type]
    return first != later


def _found(
    trace: Trace, exit_: Break, specs: Mapping[Source, TensorSpec], live: frozenset[str]
) -> Found:
    """By the names of variables that are read again: what each holds, and which others hold it."""
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
    """What a variant is compiled for: sizes as text, as two traces have symbols of their own."""
    shape, stride = (tensor.shape, tensor.stride)
    if isinstance(tensor, Tensor):
        shape, stride = as_dimensions(shape), as_dimensions(tensor.stride())
    return repr(tuple(shape)), repr(tuple(stride)), tensor.dtype, tensor.requires_grad  # type: ignore[arg-type]
