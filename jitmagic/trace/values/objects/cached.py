"""functools.lru_cache: the live entry of the cache, or the function beneath, which is followed.

Comes in: a live wrapper, known by identity, and a call. Goes out, where the arguments are constants
or live objects:

  * the cache holds a result: that very object, whose Source is the entry. It is wrapped, and
    guarded, as any live object; a call made for its effect counts the hit.
  * it holds none: the result of the function beneath, which is followed, under a guard that the
    entry is still missing, or is the same constant. A call made for its effect has Python run the
    function and fill the cache, so the next compile finds the entry. No exit may hand out, or
    change, an object of the trace in place of the one that the cache will hold.

A cache of an installed package is not called for its effect: its counters and the order in which
it drops entries say nothing to the program, and a call needs a residual in Python. A missing entry
whose function only computes is filled while tracing, as tracing fills caches of torch. So models
whose helpers are cached remain one graph and one compile.

Arguments that are new objects, or hashed in Python, are a graph break, but for functions whose only
work is to log, which Python then calls.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from ....guards.function_cache import LRU_CACHE, cache_key, cached_result
from ....guards.guard import CacheLacks, IdentityIs
from ....guards.source import Argument, CacheEntry, InstanceDict, Item, Source
from ...breaks import CachedCall, GraphBreak
from ...library_files import is_installed
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, ObservedError, Unrestorable, Value
from ..containers.mappings import DictValue
from ..containers.sequences import ListValue, TupleValue
from ..containers.sets import SetValue
from ..tensors.cached_tensors import tensors_of_cache
from .constants import ATOMS
from .identity import IdentityValue
from .instances import InstanceValue

__all__ = ["CachedFunctionValue"]

_OBJECTS = (InstanceValue, ListValue, DictValue, SetValue, TupleValue)  # the cache has its own


class CachedFunctionValue(IdentityValue):
    """What `functools.lru_cache` or `functools.cache` made of a function."""

    __slots__ = ("_results",)

    def __init__(self, live: Any, source: Source) -> None:
        super().__init__(live, source)
        self._results: dict[object, Value] = {}  # of this trace, by the key of the cache

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__wrapped__":
            return self.beneath(machine)
        self.refuse(machine, f"attribute {name!r}")

    def beneath(self, machine: Machine) -> Value:
        assert self.source is not None
        return machine.wrap(self.live.__wrapped__, Item(InstanceDict(self.source), "__wrapped__"))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        live = [_live(machine, arg) for arg in (*args, *kwargs.values())]
        if any(one is _UNKNOWN for one in live):
            return self._called_with_objects(machine, args, kwargs)
        named = dict(zip(kwargs, live[len(args) :], strict=True))
        key = cache_key(self.live, live[: len(args)], named)
        if key in self._results:  # the second time it is the same object
            result = self._results[key]
        else:
            limit = self.live.cache_parameters()["maxsize"]
            if limit is not None and len(self._results) >= limit:
                self.leave(f"keeps {limit} of them, fewer than the program asks for")
            assert self.source is not None
            try:
                found = cached_result(self.live, key)
            except KeyError:
                result = self._results[key] = self._missed(machine, args, kwargs, live, key)
                return result
            result = self._results[key] = machine.wrap(found, CacheEntry(self.source, key))
        if not self._is_of_package():
            machine.effects.call_cache(self, args, kwargs)
        return result

    def _missed(
        self, machine: Machine, args: Args, kwargs: Kwargs, live: list[Any], key: Any
    ) -> Value:
        """The result of a call for which the cache has no entry."""
        assert self.source is not None
        allowed: tuple[object, ...] = ()
        try:
            call = _Followed(self, machine, args, kwargs)
            if (asked := call.tensors(key)) is not None:
                return asked
            only_counts = self._is_of_package() and not call.logs
            if only_counts and call.may_be_made_now:
                named = dict(zip(kwargs, live[len(args) :], strict=True))
                found = self.live(*live[: len(args)], **named)
                return machine.wrap(found, CacheEntry(self.source, key))
            if not only_counts and not call.at_entry_modes:  # the call is made after the graph
                self.leave("autograd or autocast is in another mode than at the start")
            if _is_atom(machine, call.result):
                allowed = (call.result.as_constant(machine),)
            elif call.logs:
                self.leave("it has side effects")
            call.share()
        except GraphBreak:  # a call that finds an entry may be compiled
            machine.guard(CacheLacks(self.source, key))
            raise
        machine.guard(CacheLacks(self.source, key, allowed))
        if not only_counts:
            machine.effects.call_cache(self, args, kwargs)
        return call.result

    def _called_with_objects(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """With arguments of which the cache may know others that are equal."""
        call = _Followed(self, machine, args, kwargs)
        if not _is_none(machine, call.result):
            self.leave("an argument is an object, which may have changed since")
        machine.effects.perform(self, args, kwargs)  # a logger that may be silent now alone
        return call.result

    def _is_of_package(self) -> bool:
        function = self.live.__wrapped__
        if isinstance(function, types.FunctionType):
            return is_installed(function.__code__.co_filename)
        module = sys.modules.get(str(getattr(function, "__module__", None)))  # of a class
        return is_installed(str(getattr(module, "__file__", None)))

    def reason(self, why: str) -> CachedCall:
        return CachedCall.of(name=self.live.__name__, why=why)

    def leave(self, why: str) -> NoReturn:
        raise GraphBreak(self.reason(why))


class _Followed:
    """The function beneath, followed once; GraphBreak where a call of the cache would differ."""

    def __init__(
        self, cached: CachedFunctionValue, machine: Machine, args: Args, kwargs: Kwargs
    ) -> None:
        self.cached, self.machine, self.call = cached, machine, (args, kwargs)
        effects, graph = machine.effects, machine.graph
        if effects.writes_more_than_gradients():
            cached.leave("what it reads may have been written before")
        before, self.born, drawn = effects.count, machine.step, effects.drawn
        nodes = len(graph.graph.nodes)
        try:
            self.result = cached.beneath(machine).call(machine, args, kwargs).realize(machine)
        except ObservedError:  # which no cache keeps, but counts
            cached.leave("it raises")
        self.made = list(graph.graph.nodes)[nodes:]
        self.at_entry_modes = (graph.grad_enabled, graph.autocast) == graph.entry_modes
        computes = any(node.op != "placeholder" for node in self.made)
        self.may_be_made_now = self.at_entry_modes and not computes
        if effects.drawn > drawn:
            cached.leave("it draws random numbers")
        self.logs = effects.count > before
        if self.logs and not effects.take_back_calls(before):
            cached.leave("it has side effects")

    def tensors(self, key: object) -> Value | None:
        """Tensors that the cache is asked for before the graph runs; None: it returns others."""
        reason = self.cached.reason(f"it returns a {self.result.describe()}")
        return tensors_of_cache(
            self.machine, self.cached, self.call, key, self.result, self.made, reason
        )

    def share(self) -> None:
        """The cache's object is everybody's: no exit may hand out a copy, nor forget a change."""
        machine, result, cached = self.machine, self.result, self.cached
        parts = tuple(part for part in _parts(machine, result) if part.source is None)
        if not all(isinstance(p, _OBJECTS) or _is_fixed(machine, p) for p in parts):
            cached.leave(f"it returns a {result.describe()}")
        as_returned = [_contents(part) for part in parts]

        def check(builder: Builder) -> None:
            for part, contents in zip(parts, as_returned, strict=True):
                handed_out = isinstance(part, _OBJECTS) and builder.describes(part)
                if handed_out or _contents(part) != contents:
                    what = f"an object that {cached.live.__name__} keeps"
                    raise Unrestorable(what, self.born)

        machine.at_exit(check)


_UNKNOWN = object()


def _live(machine: Machine, value: Value) -> Any:
    """The live object that an argument is; TypeError in the program for what cannot be hashed."""
    real = value.realize(machine)
    token = real.hash_key(machine)
    if real.is_constant(machine):
        return real.as_constant(machine)
    if real.by_identity:
        found = real.identity()
        return _UNKNOWN if found is real else found
    if isinstance(real, InstanceValue) and token is real and real.source is not None:
        if _is_given(real.source):
            return _UNKNOWN
        machine.guard(IdentityIs(real.source, real.live))
        return real.live
    if type(real) is TupleValue:
        items = tuple(_live(machine, item) for item in real.items)
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    return _UNKNOWN


def _is_given(source: Source) -> bool:
    """Return whether the call may be given another object each time, for which nothing would be
    kept.
    """
    at: Any = source
    while (base := getattr(at, "base", None)) is not None:
        at = base
    return isinstance(at, Argument)


def _is_atom(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and type(value.as_constant(machine)) in ATOMS


def _is_fixed(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and value.python_type(machine) is not bytearray


def _is_none(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and value.as_constant(machine) is None


def _contents(part: Value) -> object:
    """What an object holds now; values are the same only if they are one value."""
    if isinstance(part, InstanceValue):
        return dict(part.attrs)
    if isinstance(part, ListValue):
        return list(part.items)
    if isinstance(part, DictValue):
        return list(part.pairs.values())
    return list(part.store.values) if isinstance(part, SetValue) else None


def _parts(machine: Machine, value: Value) -> Iterator[Value]:
    """A value and all that it holds."""
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop().realize(machine)
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            if part.source is None:
                waiting.extend(part.parts())


@wraps(LRU_CACHE)
def _wrap_cached(machine: Machine, obj: Any, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return CachedFunctionValue(obj, source)
