"""Passes facts about a graph break to the resume functions: which of their variables vary.

Facts are recorded in the Root of a function for each trace that ends at a break, so that the first
variant of a resume function already has symbols. They are:

- dimensions and numbers that are symbols at the break, of variables and of a loop's next item that
  is a row of a tensor; and dimensions that are constants there
- calls that read tensor data: under `dynamic=True` their result is a symbol from the first call on
- numbers that a loop iteration changes (a learning rate, a step count): symbols in the next one
- lists that a rolled loop fills: reading one as a whole is a break, since its length varies
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...bytecode.instruction import Instruction
from ...bytecode.snapshot import FrameSnapshot
from ...graph.symbolic.sym_node import as_dimensions
from ...guards.guard import TensorMatch
from ...guards.read import UNREADABLE, read_source
from ...guards.source import Argument, Derived, Item, Source
from ...lazy_dataclass import dataclass, field, replace
from ...symbols.interval import INT64, Interval
from ...symbols.size import Size, SizeOf, StrideOf, origin_at, stride_place
from ..breaks import RolledLoop, TensorBranch, TensorItem
from ..result import (
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
from ..varying.growing_sizes import numbers_written

__all__ = ["ResumeFacts", "without_index"]


@dataclass(eq=False)
class ResumeFacts:
    """Facts about the variables at breaks, by name; `item[1]` names a part of a tuple."""

    sizes: dict[str, dict[int, Any]] = field(default_factory=dict)  # by index, of the last break
    constants: dict[str, set[int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    reads: set[Instruction] = field(default_factory=set)  # calls that ended a graph to read data
    filled: set[Source] = field(default_factory=set)  # lists, as paths of `without_index`
    changed: set[Source] = field(default_factory=set)  # numbers, as paths of `without_index`

    def add(self, trace: Trace, at: Mapping[int, Instruction], item: str | None) -> None:
        """Record the facts about variables at a break, and about the breaking instruction's result.

        `at` maps indices to instructions of the root. `item`: the resume function's parameter for
        the next item of a loop.
        """
        if not isinstance(trace.exit, Break):
            return
        reason, broken = trace.exit.reason, at[trace.exit.index]
        # `n = x.item()`: the resume function gets the number as its item.
        if isinstance(reason, TensorItem | TensorBranch) and broken.op.startswith("CALL"):
            self.reads.add(broken)
        known = _Tensors(trace)
        for name, recipe in _variables(trace.exit):
            if (layout := known.layout(recipe)) is not None:
                self._add(name, layout)
                continue
            is_argument = isinstance(recipe, FromSource) and recipe.source in trace.varying
            if is_argument or isinstance(recipe, Invoke):  # a size, or computed from sizes
                self.numbers.add(name)
        if isinstance(reason, RolledLoop) and broken.op == "FOR_ITER" and item is not None:
            for name, layout in known.layouts_of_items(trace.exit.stack[-1], item):
                self._add(name, layout)

    def _add(self, name: str, layout: Layout) -> None:
        shape, stride = layout
        numbers = {**dict(enumerate(shape)), **{stride_place(d): n for d, n in enumerate(stride)}}
        symbolic = {place: n for place, n in numbers.items() if type(n) is not int}
        self.sizes.setdefault(name, {}).update(symbolic)
        self.constants.setdefault(name, set()).update(numbers.keys() - symbolic.keys())

    def fill(self, trace: Trace) -> None:
        """Record that lists from before the call that an iteration fills have a varying length."""
        for effect in trace.effects:
            match effect:
                case Perform(_, (FromSource(source), *_)) | ReplaceList(FromSource(source)):
                    self.filled.add(without_index(source))

    def change(self, trace: Trace, now: FrameSnapshot, stored: Container[object]) -> None:
        """Record numbers that an iteration changes, and those in variables `stored` in the loop."""
        # The learning rate and the counts of a scheduler were constants of the second iteration,
        # whose graph the third did not fit. CosineAnnealingLR with Adam has two graphs for any
        # number of steps (three before).
        for paths, number in numbers_written(trace):
            if number is None or not any(_is_now(path, number, now) for path in paths):
                self.changed.update(map(without_index, paths))
        assert isinstance(trace.exit, Break)
        for name, recipe in _variables(trace.exit):
            if name in stored and isinstance(recipe, Constant) and _is_number(recipe.value):
                self.numbers.add(name)

    def changed_in(self, names: Sequence[str]) -> frozenset[Source]:
        """Return the numbers that iterations change, as paths from a resume function's
        arguments.
        """
        places = {name: index for index, name in enumerate(names)}
        found = (_with_index(source, places) for source in self.changed)
        return frozenset(source for source in found if source is not None)

    def ranges(self, source: Source, tensor: Tensor) -> Mapping[int, Interval]:
        """Return the ranges of the sizes and strides of an input that vary."""
        rank = tensor.dim()
        sizes = self.sizes.get(_name(source), ())
        # Facts are kept by variable, which may hold a tensor of another rank now.
        return {place: INT64 for place in sizes if -2 - rank < place < rank}

    def size_at(self, source: Source, place: int) -> Size | None:
        """Return the symbol of a size at the break; sizes with two symbols there have two here."""
        size = self.sizes.get(_name(source), {}).get(place)
        return size if isinstance(size, Size) else None

    def is_constant(self, source: Source, place: int) -> bool:
        """Return whether a size or stride of an input is a constant at each break that knows it."""
        name = _name(source)
        return place in self.constants.get(name, ()) and place not in self.sizes[name]

    def numbers_of(
        self, names: Sequence[str], args: Sequence[object], read: str | None
    ) -> frozenset[Source]:
        """Return a resume function's arguments that are varying numbers; `read` names one."""
        given = enumerate(zip(names, args, strict=True))
        return frozenset(
            Argument(index, name)
            for index, (name, value) in given
            if (name in self.numbers or name == read) and _is_number(value)
        )


def without_index(source: Source) -> Source:
    """Return a path without argument positions, which differ between resume functions."""
    if isinstance(source, Argument):
        return Argument(-1, source.name)
    if isinstance(source, Derived):
        return replace(source, base=without_index(source.base))
    return source


def _with_index(source: Source, places: Mapping[str, int]) -> Source | None:
    """Return the path with argument positions; None: it begins at a variable that is not passed."""
    if isinstance(source, Argument):
        index = places.get(source.name)
        return None if index is None else Argument(index, source.name)
    if not isinstance(source, Derived):
        return source
    found = _with_index(source.base, places)
    return None if found is None else replace(source, base=found)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_now(path: Source, number: int | float, now: FrameSnapshot) -> bool:
    try:
        value = read_source(path, now)
    except UNREADABLE:
        return False
    return type(value) is type(number) and bool(value == number)


def _variables(exit_: Break) -> Iterator[tuple[str, Recipe]]:
    both: tuple[Mapping[str, Recipe], ...] = (exit_.locals, exit_.cells)
    for variables in both:
        yield from variables.items()


def _name(source: Source) -> str:
    if isinstance(source, Item) and (base := _name(source.base)):
        return f"{base}[{source.key}]"
    return source.name if isinstance(source, Argument) else ""


# Sizes and strides; an origin refers to a tensor that is not an input of the graph.
Number = int | Size | SizeOf | StrideOf
Layout = tuple[tuple[Number, ...], tuple[Number, ...]]


class _Tensors:
    """Layouts of the tensors in the variables at a break."""

    def __init__(self, trace: Trace) -> None:
        self._specs = {entry.source: entry.spec for entry in trace.inputs if entry.is_memory}
        self._matches = {g.source: g for g in trace.guards if isinstance(g, TensorMatch)}
        self._results: Any = next(iter(reversed(trace.graph.graph.nodes))).args[0]

    def layout(self, recipe: Recipe | None) -> Layout | None:
        """Return the layout of a tensor; None: it is not a tensor, or was never read."""
        if isinstance(recipe, FromSource) and recipe.source in self._specs:
            spec = self._specs[recipe.source]
            return spec.shape, spec.stride
        if isinstance(recipe, FromSource) and recipe.source in self._matches:
            return _guarded(self._matches[recipe.source])
        if isinstance(recipe, FromGraph):
            meta = self._results[recipe.index].meta.get("val")
            if isinstance(meta, Tensor):
                return as_dimensions(meta.shape), as_dimensions(meta.stride())
        return None

    def layouts_of_items(self, recipe: Recipe | None, name: str) -> Iterator[tuple[str, Layout]]:
        """Yield the layouts of an iterator's items, and of their parts, that are rows of a
        tensor.
        """
        if not isinstance(recipe, Invoke) or not isinstance(recipe.callee, Constant):
            return
        if recipe.callee.value is zip:
            for index, part in enumerate(recipe.args):
                yield from self.layouts_of_items(part, f"{name}[{index}]")
        elif recipe.callee.value is enumerate:
            yield from self.layouts_of_items(recipe.args[0], f"{name}[1]")
        elif recipe.callee.value is torch.unbind:
            tensor, dim = recipe.args
            if isinstance(dim, Constant) and (layout := self.layout(tensor)) is not None:
                yield name, _without(layout, int(dim.value))  # type: ignore[call-overload]
        elif recipe.args and (layout := self.layout(recipe.args[0])) is not None:
            if layout[0]:  # else a number: the end of a range
                yield name, _without(layout, 0)
        elif recipe.args:  # iter(...) of any of these, possibly advanced
            yield from self.layouts_of_items(recipe.args[0], name)


def _guarded(match: TensorMatch) -> Layout:
    source, spec, free = match.source, match.spec, match.free_indices

    def numbers(known: tuple[int, ...], places: Iterable[int]) -> tuple[Number, ...]:
        pairs = zip(places, known, strict=True)
        return tuple(origin_at(source, p) if p in free else n for p, n in pairs)

    dims = range(len(spec.shape))
    return numbers(spec.shape, dims), numbers(spec.stride, map(stride_place, dims))


def _without(layout: Layout, dim: int) -> Layout:
    """Return the layout of a row along a dimension."""
    shape, stride = layout
    dim %= len(shape)
    return (*shape[:dim], *shape[dim + 1 :]), (*stride[:dim], *stride[dim + 1 :])
