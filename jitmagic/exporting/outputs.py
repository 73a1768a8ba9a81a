"""Makes what a traced program returns, with stand-ins for the tensors of its graph.

In: the exit and the effects of a trace, and a stand-in for each tensor of the graph and of the
frame. Out: the result, as the Python object that the program returns, and the tensors that it has
assigned to buffers. A recipe is carried out in Python: containers, dataclasses and sizes are built
as after a call, but no live object is changed. Raises Unsupported for an effect on one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ..errors import Unsupported
from ..guards.guard import Guard
from ..guards.source import InstanceDict, Item, Source
from ..lazy_dataclass import dataclass, field, fields
from ..trace.result import (
    BuildDict,
    BuildList,
    BuildSet,
    BuildSlice,
    BuildTuple,
    Constant,
    Effect,
    FromGraph,
    FromSource,
    Invoke,
    NewInstance,
    Perform,
    Recipe,
    ReplaceDict,
    ReplaceList,
    Return,
    SetAttr,
    SetItem,
    Trace,
    sources_read,
)
from .call import ATOMS

__all__ = ["Results", "results_of", "sources_in"]

_CACHED = type(lru_cache(id))
_HINT = (
    "return the value, or assign a tensor to a registered buffer; an exported program has no "
    "other state"
)


@dataclass(slots=True)
class Results:
    """A program's result, and the new values of the buffers that it assigns."""

    value: Any = None
    buffers: list[tuple[Source, Any]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # what it sets besides, and never reads


@dataclass(slots=True)
class _Maker:
    """Carries out recipes; each is one object."""

    of_source: Callable[[Source], Any]
    of_graph: Callable[[int], Any]
    number_of: Callable[[Any], Any]
    read: frozenset[Source]
    made: dict[Recipe, Any] = field(default_factory=dict)
    results: Results = field(default_factory=Results)

    def make(self, recipe: Recipe) -> Any:
        """Return the object of a recipe."""
        if recipe not in self.made:
            self.made[recipe] = self._build(recipe)
        return self.made[recipe]

    def _all(self, recipes: Iterable[Recipe]) -> list[Any]:
        return [self.make(one) for one in recipes]

    def _build(self, recipe: Recipe) -> Any:
        match recipe:
            case FromSource(source):
                return self.of_source(source)
            case FromGraph(index):
                return self.of_graph(index)
            case Constant(value):
                return value
            case BuildTuple(items):
                return tuple(self._all(items))
            case BuildList(items):
                return self._all(items)
            case BuildSet(items):
                return set(self._all(items))
            case BuildSlice(items):
                return slice(*self._all(items))
            case BuildDict(keys, values):
                return dict(zip(self._all(keys), self._all(values), strict=True))
            case NewInstance(cls):
                return object.__new__(self.make(cls))
            case Invoke(Constant(method), (tensor,)) if method is torch.Tensor.item:
                return self.number_of(self.make(tensor))
            case Invoke(callee, args, kwargs):
                named = {name: self.make(value) for name, value in kwargs}
                return self.make(callee)(*self._all(args), **named)
        what = type(recipe).__name__.removeprefix("Build").lower()
        raise Unsupported(f"the result holds a {what}, which no exported program returns", "", None)

    def perform(self, effect: Effect) -> None:
        """Carry out an effect on an object of the program's own."""
        match effect:
            case SetItem(FromSource(Item(InstanceDict(), "_buffers") as table), key, value):
                self._assign(Item(table, self.make(key)), self.make(value))
            case SetAttr(target, name, value) if self._is_own(target):
                object.__setattr__(self.make(target), name, self.make(value))
            case SetItem(target, key, value) if self._is_own(target):
                self.make(target)[self.make(key)] = self.make(value)
            case ReplaceList(target, items) if self._is_own(target):
                self.make(target)[:] = self._all(items)
            case ReplaceDict(target, keys, values) if self._is_own(target):
                pairs = zip(self._all(keys), self._all(values), strict=True)
                self._replace(target, dict(pairs))
            case ReplaceDict(FromSource(Item(InstanceDict(), "_buffers") as table), keys, values):
                for key, value in zip(self._all(keys), self._all(values), strict=True):
                    self._assign(Item(table, key), value)
            case Perform(callee, args, kwargs) if args and self._is_own(args[0]):
                named = {name: self.make(value) for name, value in kwargs}
                self.make(callee)(*self._all(args), **named)
            case SetAttr(FromSource(source), name, value):
                self._set(source, name, self.make(value), effect)
            case Perform(callee, (FromSource(source), Constant(str(name)), value)) if (
                self.make(callee) is object.__setattr__
            ):
                self._set(source, name, self.make(value), effect)
            case Perform(callee) if isinstance(self.make(callee), _CACHED):
                return  # it fills a cache of the function
            case _:
                raise _refusal(effect)

    def _set(self, owner: Source, name: str, value: Any, effect: Effect) -> None:
        """Drop an attribute that ends as it was, or that no call reads and that is no tensor.

        A call that reads it would take another path the next time; the program could not.
        """
        old = getattr(self.of_source(owner), "__dict__", {}).get(name, self)
        if old is value or (type(old) is type(value) in ATOMS and old == value):
            return
        if type(value) not in ATOMS or Item(InstanceDict(owner), name) in self.read:
            raise _refusal(effect)
        self.results.dropped.append(f"{_path(owner)}.{name}")

    def _replace(self, target: Recipe, new: dict[Any, Any]) -> None:
        made = self.make(target)
        made.clear()
        made.update(new)

    def _is_own(self, recipe: Recipe) -> bool:
        """Return whether the program has made the object itself."""
        return not isinstance(recipe, FromSource | Constant)

    def _assign(self, buffer: Source, value: Any) -> None:
        if self.of_source(buffer) is not value:
            self.results.buffers.append((buffer, value))


def _refusal(effect: Effect) -> Unsupported:
    return Unsupported(f"the program {_described(effect)}", _HINT, None)


def _described(effect: Effect) -> str:
    match effect:
        case SetAttr(FromSource(source), name):
            return f"sets {_path(source)}.{name}"
        case Perform(_, (FromSource(source), Constant(str(name)), _)):
            return f"sets {_path(source)}.{name}"
        case SetItem(FromSource(source)) | ReplaceList(FromSource(source)):
            return f"changes {_path(source)}"
        case ReplaceDict(FromSource(source)) | Perform(_, (FromSource(source), *_)):
            return f"changes {_path(source)}"
        case Perform(Constant(value)):
            return f"calls {getattr(value, '__qualname__', value)} for its effect"
    return f"has an effect that is left after it ({type(effect).__name__})"


def _path(source: Source) -> str:
    """Return the path of an object as the module that is exported writes it."""
    return re.sub(r"^target\b", "self", source.describe())


def results_of(
    traced: Trace,
    of_source: Callable[[Source], Any],
    of_graph: Callable[[int], Any],
    number_of: Callable[[Any], Any],
) -> Results:
    """Return what the program returns and assigns, made of these stand-ins. `number_of` gives the
    stand-in of the number in a 0-dim tensor.
    """
    assert isinstance(traced.exit, Return)
    read = frozenset(_sources_of((traced.guards, tuple(one.source for one in traced.inputs))))
    maker = _Maker(of_source, of_graph, number_of, read)
    maker.make(traced.exit.value)
    for effect in traced.effects:
        maker.perform(effect)
    maker.results.value = maker.make(traced.exit.value)
    return maker.results


def sources_in(traced: Trace) -> Iterator[Source]:
    """Yield the sources that the exit and the effects read, and those of the assigned buffers."""
    yield from sources_read((traced.exit, traced.effects))
    for effect in traced.effects:
        match effect:
            case SetItem(FromSource(Item(InstanceDict(), "_buffers") as table), Constant(name)):
                yield Item(table, name)
            case ReplaceDict(FromSource(Item(InstanceDict(), "_buffers") as table), keys):
                yield from (Item(table, key.value) for key in keys if isinstance(key, Constant))


def _sources_of(part: object) -> Iterator[Source]:
    """Yield the sources in guards, with those that they are read from."""
    if isinstance(part, Source):
        yield from part.path()
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _sources_of(item)
    elif isinstance(part, Guard):
        yield from _sources_of([getattr(part, one.name) for one in fields(part)])  # type: ignore[arg-type]
