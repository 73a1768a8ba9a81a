"""Models functools.lru_cache: reads the live cache entry, or inlines the wrapped function.

Input: a live wrapper, guarded by identity, and a call with constants or live objects as arguments.

  * Hit: the result is the cached object, with the cache entry as its source. It is wrapped and
    guarded like any live object. A call recorded as an effect counts the hit.
  * Miss: the wrapped function is inlined, under a guard that the cache still lacks the entry, or
    has the same constant. A call recorded as an effect makes Python run the function and fill the
    cache, so the next compile hits. That run creates its own result: no exit may return or mutate
    the trace's object, which is not the cached one.

No effect is recorded for a cache of an installed package: the program does not depend on its hit
counters and eviction order, and an effect needs residual bytecode. If inlining its function found
no side effect and no tensor operation, the trace calls it to fill a missing entry. So models whose
helpers are cached remain one graph and compile once.

Arguments that are new objects, or whose hash is written in Python, break the graph. The exception
is a function that only logs: the call becomes an effect.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import NoReturn

from ....guards.function_cache import LRU_CACHE, cache_key, cached_result
from ....guards.guard import CacheLacks, IdentityIs
from ....guards.source import Argument, CacheEntry, InstanceDict, Item, Source
from ...breaks import CachedCall, GraphBreak
from ...library_files import is_installed
from ...wrap import by_identity, wraps
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, ObservedError, Value
from ..containers.mappings import DictValue
from ..containers.sequences import ListValue, TupleValue
from ..containers.sets import SetValue
from ..objects.constants import ATOMS
from ..objects.identity import IdentityValue
from ..objects.instances import InstanceValue
from .cached_tensors import tensors_of_cache

__all__ = ["CachedFunctionValue"]

_WRITTEN = "what it reads may have been written before"
_OBJECTS = (InstanceValue, ListValue, DictValue, SetValue, TupleValue)  # new in each uncached call


class CachedFunctionValue(IdentityValue):
    """A function that `functools.lru_cache` or `functools.cache` wraps."""

    __slots__ = ("_results",)

    def __init__(self, live: object, source: Source) -> None:
        super().__init__(live, source)
        self._results: dict[object, Value] = {}  # of this trace, by the key of the cache

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__wrapped__":
            return self.wrapped(machine)
        self.refuse(machine, f"attribute {name!r}")

    def wrapped(self, machine: Machine) -> Value:
        assert self.source is not None
        return machine.wrap(self.live.__wrapped__, Item(InstanceDict(self.source), "__wrapped__"))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        live = [_live(machine, arg) for arg in (*args, *kwargs.values())]
        if any(arg is _UNKNOWN for arg in live):
            return self._called_with_objects(machine, args, kwargs)
        named = dict(zip(kwargs, live[len(args) :], strict=True))
        key = cache_key(self.live, live[: len(args)], named)
        if key in self._results:  # a repeated call returns the same object
            result = self._results[key]
        else:
            # A smaller cache would evict entries that the model still returns in this trace.
            limit = self.live.cache_parameters()["maxsize"]
            if limit is not None and len(self._results) >= limit:
                self.break_graph(f"its maxsize {limit} is smaller than the number of calls")
            assert self.source is not None
            try:
                found = cached_result(self.live, key)
            except KeyError:
                result = self._results[key] = self._missed(machine, args, kwargs, live, key)
                return result
            # Guards on a cached object cost 0.79 us a call (`settings().t`), on a global 0.57 us.
            result = self._results[key] = machine.wrap(found, CacheEntry(self.source, key))
        if not self._is_of_package():
            machine.effects.call_cache(self, args, kwargs)
        return result

    def _missed(
        self, machine: Machine, args: Args, kwargs: Kwargs, live: list[object], key: object
    ) -> Value:
        """Return the result of a call for which the cache has no entry."""
        assert self.source is not None
        allowed: tuple[object, ...] = ()
        try:
            call = _InlinedCall(self, machine, args, kwargs)
            only_counts = self._is_of_package() and not call.logs
            named = dict(zip(kwargs, live[len(args) :], strict=True))
            positional = live[: len(args)]
            may_be_made_now = only_counts and call.may_be_made_now
            if call.follows_writes:
                is_pure = only_counts and not call.computes
                if not is_pure or not call.gives(self.live.__wrapped__(*positional, **named)):
                    self.break_graph(_WRITTEN)
                may_be_made_now = True
            if (tensors := call.tensors(key)) is not None:
                return tensors
            if may_be_made_now:
                found = self.live(*positional, **named)
                return machine.wrap(found, CacheEntry(self.source, key))
            if not only_counts and not call.at_entry_modes:  # the call is made after the graph
                self.break_graph("autograd or autocast is in another mode than at the start")
            if _is_atom(machine, call.result):
                allowed = (call.result.as_constant(machine),)
            elif call.logs:
                self.break_graph("it has side effects")
            call.check_exits()
        except GraphBreak:  # a later call that hits the cache may be compiled without a break
            machine.guard(CacheLacks(self.source, key))
            raise
        machine.guard(CacheLacks(self.source, key, allowed))
        if not only_counts:
            machine.effects.call_cache(self, args, kwargs)
        return call.result

    def _called_with_objects(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """Trace a call whose key is unknown, since an argument is an object without an identity."""
        call = _InlinedCall(self, machine, args, kwargs)
        if call.follows_writes:
            self.break_graph(_WRITTEN)
        if not _is_none(machine, call.result):
            self.break_graph("an argument is an object, which may have changed since")
        machine.effects.perform(self, args, kwargs)  # a logger may be disabled in this call only
        return call.result

    def _is_of_package(self) -> bool:
        function = self.live.__wrapped__
        if isinstance(function, types.FunctionType):
            return is_installed(function.__code__.co_filename)
        module = sys.modules.get(str(getattr(function, "__module__", None)))  # a wrapped class
        return is_installed(str(getattr(module, "__file__", None)))

    def reason(self, why: str) -> CachedCall:
        return CachedCall.of(name=self.live.__name__, why=why)

    def break_graph(self, why: str) -> NoReturn:
        raise GraphBreak(self.reason(why))


class _InlinedCall:
    """One inlined call of the wrapped function; breaks the graph if caching could be observed."""

    def __init__(
        self, cached: CachedFunctionValue, machine: Machine, args: Args, kwargs: Kwargs
    ) -> None:
        self.cached, self.machine, self.call = cached, machine, (args, kwargs)
        effects, graph = machine.effects, machine.graph
        self.follows_writes = effects.writes_more_than_gradients()
        before, self.created_at_step, drawn = effects.count, machine.step, effects.drawn
        nodes = len(graph.graph.nodes)
        try:
            self.result = cached.wrapped(machine).call(machine, args, kwargs).realize(machine)
        except ObservedError:  # lru_cache stores no result then, but counts a miss
            cached.break_graph("it raises")
        self.new_nodes = list(graph.graph.nodes)[nodes:]
        self.at_entry_modes = (graph.grad_enabled, graph.autocast) == graph.entry_modes
        self.computes = any(node.op != "placeholder" for node in self.new_nodes)
        self.may_be_made_now = self.at_entry_modes and not self.computes
        if effects.drawn > drawn:
            cached.break_graph("it draws random numbers")
        self.logs = effects.count > before
        if self.logs and not effects.take_back_calls(before):
            cached.break_graph("it has side effects")

    def gives(self, made: object) -> bool:
        """Return whether the inlined call, which read what the frame has written, has this object
        as its result: then the function reads nothing of that.
        """
        return self.result.identity() is made

    def tensors(self, key: object) -> Value | None:
        """Return tensors that the cache supplies as graph inputs; None if it returns no tensors."""
        reason = self.cached.reason(f"it returns a {self.result.describe()}")
        return tensors_of_cache(
            self.machine, self.cached, self.call, key, self.result, self.new_nodes, reason
        )

    def check_exits(self) -> None:
        """Refuse exits that return or have mutated an object that only the cache may own."""
        machine, result, cached = self.machine, self.result, self.cached
        parts = tuple(part for part in _parts(machine, result) if part.source is None)
        if not all(isinstance(p, _OBJECTS) or _is_fixed(machine, p) for p in parts):
            cached.break_graph(f"it returns a {result.describe()}")
        as_returned = [_contents(part) for part in parts]

        def check(builder: Builder) -> None:
            for part, contents in zip(parts, as_returned, strict=True):
                handed_out = isinstance(part, _OBJECTS) and builder.is_live(part)
                if handed_out or _contents(part) != contents:
                    what = f"an object that {cached.live.__name__} keeps"
                    raise CannotRebuild(what, self.created_at_step)

        machine.at_exit(check)


_UNKNOWN = object()


def _live(machine: Machine, value: Value) -> object:
    """Return an argument's live object, or _UNKNOWN; an unhashable one raises TypeError."""
    real = value.realize(machine)
    token = real.hash_key(machine)
    if real.is_constant(machine):
        return real.as_constant(machine)
    if real.by_identity:
        found = real.identity()
        return _UNKNOWN if found is real else found
    if isinstance(real, InstanceValue) and token is real and real.source is not None:
        # Such an object may be new in each call: a guard on its identity would fail.
        if isinstance(real.source.root, Argument):
            return _UNKNOWN
        machine.guard(IdentityIs(real.source, real.live))
        return real.live
    if type(real) is TupleValue:
        items = tuple(_live(machine, item) for item in real.items)
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    return _UNKNOWN


def _is_atom(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and type(value.as_constant(machine)) in ATOMS


def _is_fixed(machine: Machine, value: Value) -> bool:
    """Return whether the program gets the same object, or an equal constant, with a cache or
    without: torch.get_device_module() returns a module.
    """
    if value.by_identity and value.identity() is not value:
        return True
    return value.is_constant(machine) and value.python_type(machine) is not bytearray


def _is_none(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and value.as_constant(machine) is None


def _contents(part: Value) -> object:
    """Return the current contents of an object; the items compare by identity."""
    if isinstance(part, InstanceValue):
        return dict(part.attrs)
    if isinstance(part, ListValue):
        return list(part.items)
    if isinstance(part, DictValue):
        return list(part.pairs.values())
    return list(part.store.values) if isinstance(part, SetValue) else None


def _parts(machine: Machine, value: Value) -> Iterator[Value]:
    """Yield a value and all values reachable from it."""
    pending, seen = [value], set[int]()
    while pending:
        part = pending.pop().realize(machine)
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            if part.source is None:
                pending.extend(part.parts())


wraps(LRU_CACHE)(by_identity(CachedFunctionValue))
