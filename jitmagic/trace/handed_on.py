"""What a graph break tells the functions that go on behind it: which of its variables vary.

Comes in: a trace that ended at a break. Goes out: kept with the function's body, the dimensions and
numbers that are symbols at the break, so that what resumes there need not be compiled for one value
first; likewise those of a loop's items, where they are rows of a tensor; the calls that read data,
whose numbers `dynamic=True` has vary from the first one on; the dimensions that are constants
there, which it is not about; and the lists that a rolled loop fills, which nobody reads as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..bytecode.instruction import Instruction
from ..guards.guard import TensorMatch
from ..guards.source import Argument, Item, Source
from ..symbols.interval import INT64, Interval
from ..symbols.size import stride_place
from .breaks import RolledLoop, TensorBranch, TensorItem
from .result import (
    Break,
    Constant,
    FromGraph,
    FromSource,
    Invoke,
    Perform,
    Recipe,
    ReplaceList,
    Trace,
)

__all__ = ["HandedOn", "without_index"]


@dataclass(eq=False)
class HandedOn:
    """By the names of variables (`item[1]`: a part of one)."""

    sizes: dict[str, set[int]] = field(default_factory=dict)
    constants: dict[str, set[int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    reads: set[Instruction] = field(default_factory=set)  # calls that ended a graph to read data
    filled: set[Source] = field(default_factory=set)  # as paths of `without_index`

    def add(self, trace: Trace, at: Mapping[int, Instruction], item: str | None) -> None:
        """What a break says of the variables, and of the result of its instruction, one of `at`,
        which arrives as `item`.
        """
        if not isinstance(trace.exit, Break):
            return
        reason, broken = trace.exit.reason, at[trace.exit.index]
        if isinstance(reason, TensorItem | TensorBranch) and broken.op.startswith("CALL"):
            self.reads.add(broken)
        known = _Tensors(trace)
        for name, recipe in _variables(trace.exit):
            if (places := known.places(recipe)) is not None:
                self._add(name, *places)
                continue
            is_argument = isinstance(recipe, FromSource) and recipe.source in trace.varying
            if is_argument or isinstance(recipe, Invoke):  # a size, or what was computed of some
                self.numbers.add(name)
        if isinstance(reason, RolledLoop) and broken.op == "FOR_ITER" and item is not None:
            for name, places in known.places_of_items(trace.exit.stack[-1], item):
                self._add(name, *places)

    def _add(self, name: str, rank: int, symbolic: set[int]) -> None:
        places = {*range(rank), *map(stride_place, range(rank))}
        self.sizes.setdefault(name, set()).update(symbolic)
        self.constants.setdefault(name, set()).update(places - symbolic)

    def fill(self, trace: Trace) -> None:
        """Lists of the caller's that a round of a loop writes to have a varying number of items."""
        for effect in trace.effects:
            match effect:
                case Perform(_, (FromSource(source), *_)) | ReplaceList(FromSource(source)):
                    self.filled.add(without_index(source))

    def ranges(self, source: Source, tensor: Tensor) -> Mapping[int, Interval]:
        """The places of sizes and strides of an input that vary."""
        rank = tensor.dim()
        sizes = self.sizes.get(_name(source), ())
        return {place: INT64 for place in sizes if -2 - rank < place < rank}

    def is_constant(self, source: Source, place: int) -> bool:
        """Whether a place of an input is one number at each break that tells of it."""
        name = _name(source)
        return place in self.constants.get(name, ()) and place not in self.sizes[name]

    def numbers_of(
        self, names: Sequence[str], args: Sequence[object], read: str | None
    ) -> frozenset[Source]:
        """Those of a resume function's arguments that are numbers and vary, `read` among them."""
        given = enumerate(zip(names, args, strict=True))
        return frozenset(
            Argument(index, name)
            for index, (name, value) in given
            if (name in self.numbers or name == read) and type(value) in (int, float)
        )


def without_index(source: Source) -> Source:
    """A path by the names of variables: their places differ from one resume function to another."""
    if isinstance(source, Argument):
        return Argument(-1, source.name)
    base = getattr(source, "base", None)
    named: Source = source if base is None else replace(source, base=without_index(base))  # type: ignore[call-arg]
    return named


def _variables(exit_: Break) -> Iterator[tuple[str, Recipe]]:
    both: tuple[Mapping[str, Recipe], ...] = (exit_.locals, exit_.cells)
    for variables in both:
        yield from variables.items()


def _name(source: Source) -> str:
    if isinstance(source, Item) and (base := _name(source.base)):
        return f"{base}[{source.key}]"
    return source.name if isinstance(source, Argument) else ""


Places = tuple[int, set[int]]  # a rank, and the places of sizes and strides that are symbols


class _Tensors:
    """What a trace knows of the tensors that a break leaves."""

    def __init__(self, trace: Trace) -> None:
        self._matches = {g.source: g for g in trace.guards if isinstance(g, TensorMatch)}
        self._results: Any = next(iter(reversed(trace.graph.graph.nodes))).args[0]

    def places(self, recipe: Recipe | None) -> Places | None:
        """None: it is no tensor, or nobody has looked at it."""
        if isinstance(recipe, FromSource) and recipe.source in self._matches:
            match = self._matches[recipe.source]
            return len(match.spec.shape), set(match.free_places)
        if isinstance(recipe, FromGraph):
            meta = self._results[recipe.index].meta.get("val")
            return (meta.dim(), _symbolic(meta)) if isinstance(meta, Tensor) else None
        return None

    def places_of_items(self, recipe: Recipe | None, name: str) -> Iterator[tuple[str, Places]]:
        """Of an iterator's items, and of the parts of those, that are rows of a tensor."""
        if not isinstance(recipe, Invoke) or not isinstance(recipe.callee, Constant):
            return
        if recipe.callee.value is zip:
            for index, part in enumerate(recipe.args):
                yield from self.places_of_items(part, f"{name}[{index}]")
        elif recipe.callee.value is enumerate:
            yield from self.places_of_items(recipe.args[0], f"{name}[1]")
        elif recipe.callee.value is torch.unbind:
            tensor, dim = recipe.args
            if isinstance(dim, Constant) and (places := self.places(tensor)) is not None:
                yield name, _without(places, int(dim.value))  # type: ignore[call-overload]
        elif recipe.args and (places := self.places(recipe.args[0])) is not None:
            yield name, _without(places, 0)
        elif recipe.args:  # iter(...) of any of these, which may be advanced
            yield from self.places_of_items(recipe.args[0], name)


def _without(places: Places, dim: int) -> Places:
    """Of a row along a dimension."""
    rank, symbolic = places
    dim %= rank
    kept = set()
    for place in symbolic:
        at = place if place >= 0 else stride_place(place)
        if at != dim:
            at -= at > dim
            kept.add(at if place >= 0 else stride_place(at))
    return rank - 1, kept


def _symbolic(meta: Tensor) -> set[int]:
    sizes = {dim for dim, size in enumerate(meta.shape) if not isinstance(size, int)}
    strides = {stride_place(d) for d, step in enumerate(meta.stride()) if not isinstance(step, int)}
    return sizes | strides
