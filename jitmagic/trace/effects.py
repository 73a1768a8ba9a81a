"""Side effects as data: what the traced code did to objects that existed before the call.

While the trace runs, a Value that is written to changes its own model and logs the write in the
`EffectLog`. At the exit of the trace, the `ExitBuilder` makes one recipe per value and lists the
effects in program order. Attributes are written in the order of the program, a
container once, with its contents at the exit. Effects that fill new objects come first. Every
FromSource is read before the first effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

from ..graph.builder import GraphBuilder
from ..graph.propagate import noting_inner_calls
from ..graph.wrappers.nodes import unwrapped
from ..graph.wrappers.wrapping import Layout, Rewrap, sizes_of_wrapper, tangent_of
from ..guards.guard import DifferentObjects, TypeIs
from ..guards.source import Drawn, Referent, Source
from .breaks import TooManyItems, TransformRefused
from .graph_notes import EscapedNode
from .result import (
    BreakReason,
    BuildTuple,
    Constant,
    DelAttr,
    Draw,
    Effect,
    FromGraph,
    FromSource,
    Invoke,
    Perform,
    Recipe,
    SetAttr,
)
from .values.base import Builder, CannotRebuild, Lazy, Machine, Value
from .values.containers.dict_objects import DictObjectValue
from .values.containers.mappings import DictValue
from .values.containers.table_store import TableStore

__all__ = ["EffectLog", "ExitBuilder", "TooManyRecipes", "distinct_objects"]

# An item takes 8 µs to describe and assemble: 20,000 of them 0.16 s. A list that was doubled twenty
# times took minutes, where eager copies pointers in 50 ms.
_INSTRUCTIONS_PER_ITEM = 5

Entry = Callable[[Builder], "Effect | tuple[Effect, ...]"]


class EffectLog:
    """The effects so far, in order, as functions that describe them when the exit is built."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._latest: dict[tuple[int, str], int] = {}
        self._contents: set[int] = set()
        self._calls: dict[int, bool] = {}  # index of a call -> whether it calls an lru_cache
        self.mutated: dict[int, Value] = {}  # values with a source, by id
        self.lock: object = None  # a live lock, held while the graph runs and effects are performed
        self._draws: list[tuple[Value, Callable[[object], object]]] = []
        self.changes = 0  # how often anything was written or called
        self.gradients = 0  # how many of them stored the `.grad` of a tensor
        self.readings: list[Value] = []  # of clocks, made after the graph has run, in this order

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> None:
        """Record a write to an attribute of an object from before the call.

        `setter`: the function that must store it, if that matters.
        """
        if target.source is not None:
            self.changes += 1
            self.mutated[id(target)] = target
            self._write(target, name, lambda builder: builder.set_attr(target, name, value, setter))

    def del_attr(self, target: Value, name: str) -> None:
        if target.source is not None:
            self.changes += 1
            self.mutated[id(target)] = target
            self._erase(target, name, lambda builder: DelAttr(builder(target), name))

    def contents(self, container: Any) -> None:
        """Record that a container or cell has new contents, which `container.replace` describes."""
        self.changes += container.source is not None
        if container.source is None or id(container) in self._contents:
            return
        self._contents.add(id(container))
        self.mutated[id(container)] = container
        self._entries.append(container.replace)

    def perform(
        self, callee: Value, args: Sequence[Value] = (), kwargs: Mapping[str, Value] | None = None
    ) -> None:
        """Record a call made for its effect alone."""
        self.changes += 1
        named = tuple((kwargs or {}).items())
        self._calls[len(self._entries)] = False
        self._entries.append(
            lambda builder: Perform(
                builder(callee),
                tuple(builder(arg) for arg in args),
                tuple((name, builder(value)) for name, value in named),
            )
        )

    def call_cache(self, cached: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
        """Record a call of a functools.lru_cache for its counters and its entry; the result is
        known.
        """
        self.perform(cached, args, kwargs)
        self._calls[self.count - 1] = True

    def draw(self, generator: Value, perform: Callable[[object], object], name: str) -> Drawn:
        """Record a call that draws random numbers and does nothing else.

        Only another draw changes its result, so all draws happen before the graph runs.
        """
        self.changes += 1
        self._draws.append((generator, perform))
        return Drawn(len(self._draws) - 1, name)

    @property
    def drawn(self) -> int:
        """Return the number of draws so far."""
        return len(self._draws)

    def draws(self, builder: Builder) -> tuple[Draw, ...]:
        return tuple(Draw(builder(generator), perform) for generator, perform in self._draws)

    def has_effects_besides_gradients(self) -> bool:
        """Return whether anything but gradients was written, or called except draws and caches."""
        return self.changes > self.gradients + self.drawn + sum(self._calls.values())

    def writes_more_than_gradients(self) -> bool:
        """Return whether anything but gradients was written."""
        return self.changes > self.gradients + self.drawn + len(self._calls)

    @property
    def count(self) -> int:
        """Return the number of effects so far."""
        return len(self._entries)

    def take_back_calls(self, count: int) -> bool:
        """Remove the effects after the first `count` if all are calls; return whether they were."""
        if not all(number in self._calls for number in range(count, len(self._entries))):
            return False
        self.changes -= len(self._entries) - count
        del self._entries[count:]
        self._calls = {number: kind for number, kind in self._calls.items() if number < count}
        return True

    def _write(self, target: Value, name: str, entry: Entry) -> None:
        """Record a write: the last value counts, at the position of the first write to the name."""
        # One write per attribute: a counter that an unrolled loop adds to would be stored once per
        # iteration.
        key = id(target), name
        if key in self._latest:
            self._entries[self._latest[key]] = entry
        else:
            self._latest[key] = len(self._entries)
            self._entries.append(entry)

    def _erase(self, target: Value, name: str, entry: Entry) -> None:
        # A write after `del` is a new entry: the object's dictionary appends the name again.
        self._latest.pop((id(target), name), None)
        self._entries.append(entry)

    def describe(self, builder: ExitBuilder) -> None:
        """Add the effects to the exit under construction."""
        for entry in self._entries:
            for effect in _all_of(entry(builder)):
                builder.effect(effect)


def _is_write(callee: Recipe) -> bool:
    """Return whether it is `setattr` or a method of a built-in class, whose code is C."""
    if not isinstance(callee, Constant):
        return False
    method = callee.value
    if isinstance(method, MethodDescriptorType | WrapperDescriptorType):
        return method.__objclass__.__module__ in ("builtins", "collections")
    return method is setattr


def _all_of(entry: Effect | tuple[Effect, ...]) -> tuple[Effect, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


class ExitBuilder:
    """Describes one exit; see `Builder` in values/base.py."""

    def __init__(self, machine: Machine, graph: GraphBuilder) -> None:
        self._machine = machine
        self._graph = graph
        self._asked = 0  # number of recipes requested, one for each item of a container
        self._most = machine.options.unroll_limit // _INSTRUCTIONS_PER_ITEM
        self._recipes: dict[int, tuple[Value, Recipe]] = {}
        self._outputs: dict[int, FromGraph] = {}
        self._unfilled: list[Value] = []  # new objects whose `fill` has not been called yet
        self._effects: list[Effect] = []
        self._late: list[Effect] = []
        self._active: set[int] = set()
        self._containers: list[Any] = []

    def __call__(self, value: Value) -> Recipe:
        self._asked += 1
        if self._asked > self._most:
            raise TooManyRecipes(TooManyItems.of(limit=self._most))
        if isinstance(value, Lazy) and value.real is not None:
            value = value.real
        known = self._recipes.get(id(value))
        if known is not None:
            return known[1]
        recipe = (
            self._read(value) if value.source and not value.is_value_guarded else self._make(value)
        )
        self._recipes[id(value)] = value, recipe
        if value.source is None:
            self._unfilled.append(value)
        return recipe

    def _read(self, value: Value) -> Recipe:
        assert value.source is not None
        if isinstance(value, Lazy) and not value.certain:
            self._machine.guard(TypeIs(value.source, type(value.obj)))
        return FromSource(value.source)

    def _make(self, value: Value) -> Recipe:
        """Return the recipe of a new object; one that contains itself is filled by an effect."""
        if id(value) in self._active:
            raise _SelfContaining
        self._active.add(id(value))
        try:
            return value.recipe(self)
        except _SelfContaining:
            empty = value.empty_recipe()
            if empty is None:
                raise
            self._containers.append(value)
            return empty
        finally:
            self._active.discard(id(value))

    def is_live(self, value: Value) -> bool:
        return id(value) in self._recipes

    def constant(self, value: object) -> Recipe:
        return Constant(value)

    def invoke(self, callee: object, args: tuple[Recipe, ...], /, **kwargs: Recipe) -> Recipe:
        return Invoke(Constant(callee), args, tuple(kwargs.items()))

    def call(self, callee: Recipe, *args: Recipe) -> Recipe:
        return Invoke(callee, args)

    def output(self, value: Value, node: Any) -> FromGraph:
        if isinstance(node, EscapedNode):
            raise CannotRebuild(
                "a tensor at a level of torch.func", node.created_at_step, node.reason
            )
        if node.graph is not self._graph.graph:
            why = "a number that it computed escapes"
            reason = TransformRefused.of(name="torch.func", why=why)
            raise CannotRebuild("a number at a level of torch.func", node.meta["step"], reason)
        index = self._graph.output(node)
        return self._outputs.setdefault(index, FromGraph(index))

    def rewrapped(self, wrapper: Any) -> Recipe:
        """Return the recipe that rebuilds a wrapper subclass around inner tensors of the graph."""
        owners = self._machine.notes.owners
        found: list[Any] = [
            owners.get(node) or type(wrapper)(node, type(node.meta["val"]))
            for node in unwrapped(self._graph, wrapper.node)
        ]
        sizes = sizes_of_wrapper(wrapper.meta)
        inner = BuildTuple(tuple(map(self, found)))
        with noting_inner_calls():
            target = Rewrap(Layout.of(wrapper.meta), tangent=tangent_of(wrapper.meta))
        return self.invoke(target, (inner, *(self(self._machine.constant(one)) for one in sizes)))

    def only_writes(self) -> bool:
        """Return whether no effect is a call of the program's, which might wait for a thread."""
        return all(_is_write(e.callee) for e in self._effects if isinstance(e, Perform))

    def effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def set_attr(
        self, target: Value, name: str, value: Value, setter: object | None = None
    ) -> Effect:
        if setter is not None:
            return Perform(Constant(setter), (self(target), Constant(name), self(value)))
        known: object = target.python_type(self._machine).__setattr__
        # STORE_ATTR calls a `__setattr__` of the class, which the trace has interpreted already.
        if known in (object.__setattr__, type.__setattr__):
            return SetAttr(self(target), name, self(value))
        arguments = self(target), Constant(name), self(value)
        return Perform(Constant(object.__setattr__), arguments)

    def set_state(self, iterator: Recipe, index: int) -> None:
        setter = self.invoke(getattr, (iterator, Constant("__setstate__")))
        self._late.append(Perform(setter, (Constant(index),)))

    def effects(self) -> tuple[Effect, ...]:
        """Return all effects: fills of new objects, the program's own, then advances of
        iterators.
        """
        fills: list[Effect] = []
        while self._unfilled or self._containers:
            waiting, self._unfilled = self._unfilled, []
            fills.extend(effect for value in waiting for effect in value.fill(self))
            emptied, self._containers = self._containers, []
            fills.extend(effect for one in emptied for effect in _all_of(one.replace(self)))
        # An iterator advances last, since `__setstate__` of a list iterator clips the index to the
        # list's length at that moment.
        return (*fills, *self._effects, *self._late)


class TooManyRecipes(Exception):
    """Raised when rebuilding the values at the exit would cost more than the graph saves."""

    def __init__(self, reason: BreakReason) -> None:
        super().__init__()
        self.reason = reason


class _SelfContaining(Exception):
    """Raised when the recipe of a new object needs the recipe of that same object."""


def distinct_objects(machine: Machine, mutated: Sequence[Value], seen: Sequence[Value]) -> None:
    """Guard that a mutated object is not aliased: no second path leads to it.

    Writes are replayed object by object. If two paths lead to two objects while tracing and to one
    object in a later call, one of the writes would be lost.
    """
    _distinct_dictionaries(machine, mutated, seen)
    changed = {id(value): value for value in mutated if not isinstance(value, DictValue)}
    by_type: dict[type, tuple[list[Source], list[Source]]] = {}
    for value in changed.values():
        assert value.source is not None
        by_type.setdefault(value.python_type(machine), ([], []))[0].append(value.source)
    for value in {id(value): value for value in seen}.values():
        kinds = by_type.get(value.python_type(machine))
        if (
            kinds
            and value.source is not None
            and not value.by_identity
            and id(value) not in changed
        ):
            kinds[1].append(value.source)
    for sources, others in by_type.values():
        if len(sources) + len(others) > 1:
            machine.guard(DifferentObjects(tuple(sources), tuple(others)))


def _distinct_dictionaries(
    machine: Machine, mutated: Sequence[Value], seen: Sequence[Value]
) -> None:
    """Guard the same for dictionaries, but only where the keys read and written overlap.

    The attributes of hundreds of modules are dictionaries too: guarding each pair would cost too
    much.
    """
    for of_classes in (False, True):  # only a mappingproxy leads to a class's: no alias of others
        changed = _dictionaries(mutated, of_classes)
        known = _dictionaries(seen, of_classes) | changed
        met = _overlapping([store for _, store in changed.values()], known)
        sources = tuple(source for key, (source, _) in changed.items() if key in met)
        if sources and len(met) > 1:
            rest = (source for key, (source, _) in known.items() if key in met - changed.keys())
            machine.guard(DifferentObjects(sources, tuple(rest)))


def _overlapping(
    changed: list[TableStore], known: dict[int, tuple[Source, TableStore]]
) -> set[int]:
    """Return the dictionaries with a change that another would see if both were one object."""
    written: set[object] = set()
    for store in changed:
        written |= store.tokens(written=True)
    holders: dict[object, set[int]] = {}
    for key, (_, store) in known.items():
        for token in store.tokens() & written if not store.depends_on_all_keys else written:
            holders.setdefault(token, set()).add(key)
    met = {key for group in holders.values() if len(group) > 1 for key in group}
    return met | set(known) if any(store.depends_on_all_keys for store in changed) else met


def _dictionaries(
    values: Sequence[Value], of_classes: bool
) -> dict[int, tuple[Source, TableStore]]:
    """Return the live dictionaries among the values, by their stores."""
    found: dict[int, tuple[Source, TableStore]] = {}
    for value in values:
        entries = value.dictionary if isinstance(value, DictObjectValue) else value
        source = value.source
        if not isinstance(entries, DictValue) or source is None:
            continue
        if isinstance(source, Referent) == of_classes:
            found[id(entries.store)] = source, entries.store
    return found
