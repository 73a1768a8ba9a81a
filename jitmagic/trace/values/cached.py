"""functools.lru_cache: what the cache keeps, or the function beneath is followed.

Comes in: a live wrapper, known by identity, called with constants. Goes out: the constant that the
cache keeps for a call without arguments, for as long as it does (what a process asks once: whether
a package is installed), else what the function beneath returns, guarded by what it reads, where
nobody can tell it from what the cache holds: constants, and objects that the program only looks at.
One whose only work is to log or warn is an effect: Python calls the wrapper, which knows whether it
has been called before.
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
from .constants import ATOMS
from .identity import IdentityValue
from .instances import InstanceValue

__all__ = ["CachedFunctionValue"]

_CHANGEABLE = (list, dict, set, bytearray)


class CachedFunctionValue(IdentityValue):
    """What `functools.lru_cache` or `functools.cache` made of a function."""

    __slots__ = ()

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
        before, born = machine.effects.count, machine.step
        result = self._beneath(machine).call(machine, args, kwargs).realize(machine)
        if machine.effects.count > before:
            if not machine.effects.take_back_calls(before) or not _is_none(machine, result):
                self._leave("it has side effects")
            machine.effects.perform(self, args, kwargs)
            return result
        if not all(_is_fixed(machine, arg) for arg in (*args, *kwargs.values())):
            self._leave("an argument is an object, which may have changed since")
        self._share(machine, result, born)
        return result

    def _share(self, machine: Machine, result: Value, born: int) -> None:
        """The cache's object is everybody's: no exit may hand out a copy, nor forget a change."""
        parts = tuple(_parts(machine, result))
        if not all(_may_be_shared(machine, part) for part in parts):
            self._leave(f"it returns a {result.describe()}")
        as_returned = [_contents(part) for part in parts]

        def check(builder: Builder) -> None:
            for part, contents in zip(parts, as_returned, strict=True):
                handed_out = isinstance(part, InstanceValue) and builder.tells(part)
                if handed_out or _contents(part) != contents:
                    raise Unrestorable(f"an object that {self.live.__name__} keeps", born)

        machine.at_exit(check)

    def _leave(self, why: str) -> None:
        raise GraphBreak(CachedCall.of(name=self.live.__name__, why=why))


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


def _is_none(machine: Machine, value: Value) -> bool:
    return value.is_constant(machine) and value.as_constant(machine) is None


def _is_fixed(machine: Machine, arg: Value) -> bool:
    """Whether equal arguments mean the same result at any time."""
    real = arg.realize(machine)
    return real.is_constant(machine) or real.by_identity


def _may_be_shared(machine: Machine, part: Value) -> bool:
    if isinstance(part, InstanceValue) or part.by_identity:
        return True
    return part.is_constant(machine) and part.python_type(machine) not in _CHANGEABLE


def _contents(part: Value) -> dict[str, Value | None]:
    return dict(part.attrs) if isinstance(part, InstanceValue) else {}


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
