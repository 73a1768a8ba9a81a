"""Detects dimensions that the frame itself changes, by storing a tensor of another size.

A key-value cache, for example, gets one token longer: that dimension will differ in the next call,
so it becomes a symbol before a second call has shown it. Such a cache begins with size one, which
becomes an unbacked symbol; as a constant it would need a variant of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from ...guards.read import is_input_of_call
from ...guards.source import (
    DictEntry,
    Global,
    InstanceDict,
    Item,
    SlotAttr,
    Source,
)
from ...lazy_dataclass import dataclass
from ...spec import TensorSpec
from ...symbols.interval import INT64, GrowingRange, Interval
from ..result import (
    Constant,
    Effect,
    FromGraph,
    FromSource,
    Invoke,
    Perform,
    Recipe,
    ReplaceDict,
    ReplaceList,
    SetAttr,
    SetItem,
    Trace,
)

__all__ = ["Resized", "numbers_written", "resized"]

Place = tuple[Source, object]  # an object, and the attribute or key that is written
_FROM_ONE = GrowingRange(1, INT64.high)


@dataclass(frozen=True, slots=True)
class Resized:
    """Dimensions of inputs that the frame changes, and all their old and new sizes but one."""

    dims: Mapping[Source, frozenset[int]]
    sizes: frozenset[int]
    has_ones: bool  # one of the dimensions is of size one

    def ranges(self, source: Source, tensor: torch.Tensor, ones: bool) -> dict[int, Interval]:
        """Return the ranges of the dimensions of an input that vary.

        Dimensions of arguments with one of the old or new sizes, other than one, vary too: those of
        a mask or of positions grow with the cache. `ones`: include dimensions of size one.
        """
        found = set(self.dims.get(source, ()))
        if is_input_of_call(source, tensor):
            found |= {dim for dim, size in enumerate(tensor.shape) if size in self.sizes}
        sizes = {dim: tensor.shape[dim] for dim in found}
        return {d: INT64 if n > 1 else _FROM_ONE for d, n in sizes.items() if ones or n > 1}


def resized(traced: Trace, static: Callable[[Source], Collection[int]]) -> Resized | None:
    """Return the dimensions that the frame's effects change, except an input's `static` ones; None
    if there are none.
    """
    outputs: Any = next(iter(reversed(traced.graph.graph.nodes))).args[0]
    before = {
        place: (entry.source, entry.spec)
        for entry in traced.inputs
        if entry.is_memory and (place := _place_of(entry.source)) is not None
    }
    dims: dict[Source, frozenset[int]] = {}
    sizes: set[int] = set()
    for place, value in (pair for effect in traced.effects for pair in _written(effect)):
        # Only a tensor that replaces an input in the same attribute or item is its new value.
        if place not in before or not isinstance(value, FromGraph):
            continue
        source, old = before[place]
        new: TensorSpec = outputs[value.index].meta["spec"]
        # A tensor of another rank is another variant in any case.
        if len(new.shape) != len(old.shape):
            continue
        pairs = enumerate(zip(old.shape, new.shape, strict=True))
        kept = static(source)
        changed = {d: (a, b) for d, (a, b) in pairs if _are_others(a, b) and d not in kept}
        if changed:
            dims[source] = dims.get(source, frozenset()).union(changed)
            sizes.update(size for pair in changed.values() for size in pair)
    # Many unrelated dimensions are of size one, so equal size proves nothing there.
    ones = any(
        spec.shape[dim] == 1 for source, spec in before.values() for dim in dims.get(source, ())
    )
    return Resized(dims, frozenset(sizes - {1}), ones) if dims else None


def numbers_written(traced: Trace) -> Iterator[tuple[tuple[Source, ...], int | float | None]]:
    """Yield each number that the frame writes (None: data-dependent), with paths to it."""
    for effect in traced.effects:
        written: list[tuple[tuple[Source, ...], Recipe]]
        match effect:
            case SetItem(Constant(), Constant(str(name)), value):  # in a namespace
                written = [((Global(name),), value)]
            case _:
                written = [(_paths(*place), value) for place, value in _written(effect)]
        for paths, value in written:
            match value:
                case Constant(number) if type(number) in (int, float):
                    yield paths, number  # type: ignore[misc]
                # `self.best = loss.item()` differs in each call, whatever this call's value was.
                case Invoke(Constant(torch.Tensor.item)):
                    yield paths, None


def _paths(base: Source, key: object) -> tuple[Source, ...]:
    """Return the paths that may read an attribute or an item."""
    own = InstanceDict(base)
    return Item(own, key), DictEntry(own, key), Item(base, key), DictEntry(base, key)


def _are_others(old: object, new: object) -> bool:
    """Return whether two sizes differ and the first may be a symbol."""
    # Size 0 is never a symbol: a cache that begins as torch.empty(0) has a variant for that.
    return type(old) is int and type(new) is int and old > 0 and old != new


def _place_of(source: Source) -> Place | None:
    match source:
        case Item(InstanceDict(base), key) | DictEntry(InstanceDict(base), key):
            return base, key
        case SlotAttr(base, key):
            return base, key
        case Item(base, key) | DictEntry(base, key):
            return base, key
    return None


def _written(effect: Effect) -> Iterator[tuple[Place, Recipe]]:
    """Yield the attributes and items that an effect writes, with the new values."""
    match effect:
        case SetAttr(FromSource(source), name, value):
            yield (source, name), value
        case SetItem(FromSource(source), Constant(key), value):
            yield (source, key), value
        case Perform(Constant(list.__setitem__), (FromSource(source), Constant(key), value)):
            yield (source, key), value
        case ReplaceList(FromSource(source), items):
            yield from (((source, n), item) for n, item in enumerate(items))
        case ReplaceDict(FromSource(source), keys, values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, Constant):
                    yield (source, key.value), value
