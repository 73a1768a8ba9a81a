"""functools.lru_cache: what the cache keeps, or the function beneath is followed.

Comes in: a live wrapper, known by identity, called with constants. Goes out: the constant that the
cache keeps for a call without arguments, for as long as it does (what a process asks once: whether
a package is installed), else what the function beneath returns, guarded by what it reads, where
nobody can tell it from what the cache holds: constants, and objects and containers that the program
only looks at. What one cache returned may so be an argument of another call.
One whose only work is to log or warn is an effect: Python calls the wrapper, which knows whether it
has been called before; so is one that does nothing now with an object that may change.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

from ...guards.guard import IdentityIs, NameFact, NamespaceFacts
from ...guards.source import InstanceDict, Item, Source
from ..breaks import CachedCall, GraphBreak
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, Unrestorable, Value
from .cached_tensors import tensors_of_cache
from .constants import ATOMS
from .identity import IdentityValue
from .instances import InstanceValue
from .mappings import DictValue
from .sequences import ListValue
from .sets import SetValue

__all__ = ["CachedFunctionValue"]

_OBJECTS = (InstanceValue, ListValue, DictValue, SetValue)  # of each the cache has its own


class CachedFunctionValue(IdentityValue):
    """What `functools.lru_cache` or `functools.cache` made of a function."""

    __slots__ = ("_results",)

    def __init__(self, live: Any, source: Source) -> None:
        super().__init__(live, source)
        self._results: dict[object, Value] = {}

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__wrapped__":
            return self._beneath(machine)
        self.refuse(machine, f"attribute {name!r}")

    def _beneath(self, machine: Machine) -> Value:
        assert self.source is not None
        return machine.wrap(self.live.__wrapped__, Item(InstanceDict(self.source), "__wrapped__"))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if not args and not kwargs and (kept := _kept(self.live)) is not None:
            cache, result = kept
            machine.guard(NamespaceFacts(cache, (NameFact((), cache[()]),)))
            return machine.constant(result)
        key = _key(machine, args, kwargs)
        if key in self._results:  # the second time it is the same object
            return self._results[key]
        before, born, drawn = machine.effects.count, machine.step, machine.effects.drawn
        nodes = len(machine.graph.graph.nodes)
        result = self._beneath(machine).call(machine, args, kwargs).realize(machine)
        if machine.effects.drawn > drawn:
            self._leave("it draws random numbers")
        if machine.effects.count > before:
            if not machine.effects.take_back_calls(before) or not _is_none(machine, result):
                self._leave("it has side effects")
            machine.effects.perform(self, args, kwargs)
            return result
        marks = machine.notes.marks
        if not all(_is_fixed(machine, arg, marks) for arg in (*args, *kwargs.values())):
            if _is_none(machine, result):  # a logger that is silent now, and may not be later
                machine.effects.perform(self, args, kwargs)
                return result
            self._leave("an argument is an object, which may have changed since")
        beneath = list(machine.graph.graph.nodes)[nodes:]
        reason = self._reason(f"it returns a {result.describe()}")
        asked = tensors_of_cache(machine, self, (args, kwargs), result, beneath, reason)
        if asked is None:
            self._share(machine, result, born)
        else:
            result = asked
        self._results[key] = result
        return result

    def _share(self, machine: Machine, result: Value, born: int) -> None:
        """The cache's object is everybody's: no exit may hand out a copy, nor forget a change."""
        parts = tuple(_parts(machine, result))
        if not all(_may_be_shared(machine, part) for part in parts):
            self._leave(f"it returns a {result.describe()}")
        as_returned = [_contents(part) for part in parts]
        machine.notes.marks.update(map(_mark, parts))

        def check(builder: Builder) -> None:
            for part, contents in zip(parts, as_returned, strict=True):
                handed_out = isinstance(part, _OBJECTS) and builder.tells(part)
                if handed_out or _contents(part) != contents:
                    raise Unrestorable(f"an object that {self.live.__name__} keeps", born)

        machine.at_exit(check)

    def _reason(self, why: str) -> CachedCall:
        return CachedCall.of(name=self.live.__name__, why=why)

    def _leave(self, why: str) -> None:
        raise GraphBreak(self._reason(why))


def _kept(wrapper: Any) -> tuple[dict[Any, object], object] | None:
    """The cache, and the constant in it that a call without arguments gives; None: unknown.

    Read as the collector sees the wrapper (CPython 3.11 to 3.13): its class, a triple for each link
    of a cache with a limit (key, result, class), the dictionary, the function and four more.
    Without a limit the dictionary has the results themselves.
    """
    _, *links, cache, function, _, _, _, _ = gc.get_referents(wrapper)
    if function is not wrapper.__wrapped__ or type(cache) is not dict or () not in cache:
        return None
    linked = zip(links[::3], links[1::3], strict=True) if links else ()
    results = [result for key, result in linked if type(key) is tuple and not key]
    result = results[0] if links else cache[()]
    return (cache, result) if type(result) in ATOMS else None


def _key(machine: Machine, args: Args, kwargs: Kwargs) -> object:
    """What a call is kept under; TypeError for what cannot be hashed."""
    named = tuple((name, arg.realize(machine).hash_key(machine)) for name, arg in kwargs.items())
    return tuple(arg.realize(machine).hash_key(machine) for arg in args), named


def _is_none(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and value.as_constant(machine) is None


def _is_fixed(machine: Machine, arg: Value, marks: set[str]) -> bool:
    """Whether equal arguments mean the same result at any time."""
    real = arg.realize(machine)
    return real.is_constant(machine) or real.by_identity or _mark(real) in marks


def _mark(part: Value) -> str:
    """Of an object that a cache keeps, whose check at the exit keeps it alive."""
    return f"kept by a cache: {id(part)}"


def _may_be_shared(machine: Machine, part: Value) -> bool:
    if isinstance(part, _OBJECTS):
        return part.source is None or isinstance(part, InstanceValue)
    return part.by_identity or (
        part.is_constant(machine) and part.python_type(machine) is not bytearray
    )


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
            waiting.extend(part.parts())


_WRAPPER: Any = type(functools.lru_cache(lambda: None))


@wraps(_WRAPPER)
def _wrap_cached(machine: Machine, obj: Any, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    return CachedFunctionValue(obj, source)
