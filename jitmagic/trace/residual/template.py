"""Decides whether the native dispatcher can build the frame's result without running Python.

`template_of` returns a `Template` if the trace ends in a return (no break), without effects or
draws, and the result consists of graph outputs, frame values that guards read anyway, constants,
tuples, lists and dicts. Otherwise it returns None, and a residual function is emitted (emit.py).
"""

from __future__ import annotations

from typing import Any

from ...guards.source import Source
from ...lazy_dataclass import dataclass
from ..result import (
    BuildDict,
    BuildList,
    BuildTuple,
    Constant,
    FromGraph,
    FromSource,
    Recipe,
    Return,
    Trace,
)

__all__ = ["Template", "template_of"]

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


@dataclass(frozen=True, slots=True)
class Template:
    """The nested structure of a result; ("reg", i) in `shape` stands for the i-th of `sources`."""

    shape: tuple[Any, ...]
    sources: tuple[Source, ...]

    def with_registers(self, registers: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the template with guard registers in place of source numbers."""
        return _renumber(self.shape, registers)


def _renumber(shape: tuple[Any, ...], registers: tuple[int, ...]) -> tuple[Any, ...]:
    match shape:
        case ("reg", number):
            return ("reg", registers[number])
        case ("tuple" | "list" as kind, *parts):
            return (kind, *(_renumber(part, registers) for part in parts))
        case ("dict", *pairs):
            return ("dict", *((key, _renumber(part, registers)) for key, part in pairs))
    return shape


class _NotPlain(Exception):
    """The result needs Python to be built."""


def template_of(trace: Trace) -> Template | None:
    """Return the native template of a trace's result, or None."""
    # Each of these is a call of a Python function around the graph.
    if not isinstance(trace.exit, Return) or trace.effects or trace.draws or trace.casts:
        return None
    sources: list[Source] = []
    seen: set[int] = set()
    try:
        return Template(_shape(trace.exit.value, sources, seen), tuple(sources))
    except _NotPlain:
        return None


def _shape(recipe: Recipe, sources: list[Source], seen: set[int]) -> tuple[Any, ...]:
    match recipe:
        case FromGraph(index):
            return ("out", index)
        case FromSource(source):
            sources.append(source)
            return ("reg", len(sources) - 1)
        case Constant(value):
            return ("const", value)
    if id(recipe) in seen:  # one list in two places must stay one list
        raise _NotPlain
    seen.add(id(recipe))
    match recipe:
        case BuildTuple(items):
            return ("tuple", *(_shape(item, sources, seen) for item in items))
        case BuildList(items):
            return ("list", *(_shape(item, sources, seen) for item in items))
        case BuildDict(keys, values):
            pairs = zip(keys, values, strict=True)
            return ("dict", *((_key(key), _shape(value, sources, seen)) for key, value in pairs))
    raise _NotPlain


def _key(recipe: Recipe) -> object:
    # The dispatcher builds the dictionary in C++; hashing and comparing such keys runs no code of
    # the user's.
    if isinstance(recipe, Constant) and isinstance(recipe.value, _IMMUTABLE):
        return recipe.value
    raise _NotPlain
