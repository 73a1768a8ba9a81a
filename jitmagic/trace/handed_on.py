"""What a graph break tells the functions that go on behind it: which of its variables vary.

Comes in: a trace that ended at a break. Goes out: kept with the function's body, the dimensions and
numbers that are symbols at the break, so that what resumes there need not be compiled for one value
first; the calls that read data, whose numbers `dynamic=True` has vary from the first one on; the
dimensions that are constants there, which it is not about; and the lists that a rolled loop fills,
which nobody reads as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..bytecode.instruction import Instruction
from ..guards.guard import TensorMatch
from ..guards.source import Argument, Source
from ..symbols.size import stride_place
from .breaks import TensorBranch, TensorItem
from .result import Break, FromGraph, FromSource, Invoke, Perform, Recipe, ReplaceList, Trace

__all__ = ["HandedOn", "without_index"]


@dataclass(eq=False)
class HandedOn:
    """By the names of variables."""

    sizes: dict[str, set[int]] = field(default_factory=dict)
    constants: dict[str, set[int]] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    reads: set[Instruction] = field(default_factory=set)  # calls that ended a graph to read data
    filled: set[Source] = field(default_factory=set)  # as paths of `without_index`

    def add(self, trace: Trace, at: Mapping[int, Instruction]) -> None:
        """What a break says of the variables, and of the result of its instruction, one of `at`."""
        if not isinstance(trace.exit, Break):
            return
        reason, broken = trace.exit.reason, at[trace.exit.index]
        if isinstance(reason, TensorItem | TensorBranch) and broken.op.startswith("CALL"):
            self.reads.add(broken)
        matches = {g.source: g for g in trace.guards if isinstance(g, TensorMatch)}
        outputs: Any = next(iter(reversed(trace.graph.graph.nodes))).args[0]
        for name, recipe in _variables(trace.exit):
            match recipe:
                case FromSource(source) if source in matches:
                    match_ = matches[source]
                    self._add(name, len(match_.spec.shape), set(match_.free_places))
                case FromSource(source) if source in trace.varying:
                    self.numbers.add(name)
                case FromGraph(index) if isinstance(meta := outputs[index].meta.get("val"), Tensor):
                    self._add(name, meta.dim(), _symbolic(meta))
                case Invoke():  # a size, or what was computed of some
                    self.numbers.add(name)

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

    def dims(self, source: Source, tensor: Tensor) -> set[int]:
        """The places of sizes and strides of an input that vary."""
        rank = tensor.dim()
        sizes = self.sizes.get(_name(source), ())
        return {place for place in sizes if -2 - rank < place < rank}

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
    return source.name if isinstance(source, Argument) else ""


def _symbolic(meta: Tensor) -> set[int]:
    sizes = {dim for dim, size in enumerate(meta.shape) if not isinstance(size, int)}
    strides = {stride_place(d) for d, step in enumerate(meta.stride()) if not isinstance(step, int)}
    return sizes | strides
