"""Registries that map the type of a live object to the Value class that models it.

Only the exact type of the object is read here; its Value class guards whatever else it reads.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..guards.guard import IdentityIs
from ..guards.source import Source
from ..late_tables import LateTable, class_name
from .values.base import Machine, Value

__all__ = ["Wrapper", "by_identity", "intercepts", "wrap_object", "wraps", "wraps_named"]

Wrapper = Callable[[Machine, object, Source], Value]
Interceptor = Callable[[Machine, object, Source], Value | None]
_W = TypeVar("_W", bound=Callable[..., object])

_EXACT: LateTable[type, Wrapper] = LateTable("wrappers of a type", class_name)
_SUBCLASSES: LateTable[type, Wrapper] = LateTable("wrappers of subclasses", class_name)
# By (module, class) of an optional package.
_NAMED: LateTable[tuple[str, str], Wrapper] = LateTable("wrappers by name", ".".join)
# By type, and the library of the objects; "": of all.
_INTERCEPTORS: LateTable[tuple[type, str], list[Interceptor]] = LateTable(
    "interceptors", lambda key: f"{class_name(key[0])}:{key[1]}"
)
_OF_LIBRARIES = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def wraps(*kinds: type, subclasses: bool = False) -> Callable[[_W], _W]:
    """Register how objects of these types become values; see values/base.py."""

    def register(wrapper: _W) -> _W:
        table = _SUBCLASSES if subclasses else _EXACT
        table.update(dict.fromkeys(kinds, wrapper))  # type: ignore[arg-type]
        return wrapper

    return register


def wraps_named(module: str, name: str) -> Callable[[Wrapper], Wrapper]:
    """Register how instances of a class, and of its subclasses, become values. The class belongs
    to an optional package, which is not imported here.
    """

    def register(wrapper: Wrapper) -> Wrapper:
        _NAMED[module, name] = wrapper
        return wrapper

    return register


def intercepts(*kinds: type, library: str = "") -> Callable[[_W], _W]:
    """Register a function that is called before the wrapper of `wraps`, for exactly these types.
    `library`: it only answers for modules and functions of this top-level package.
    """

    def register(interceptor: _W) -> _W:
        for kind in kinds:
            _INTERCEPTORS.setdefault((kind, library), []).append(interceptor)  # type: ignore[arg-type]
        return interceptor

    return register


def by_identity(make: Callable[[Any, Source], Value]) -> Wrapper:
    """Return the wrapper that guards the identity of an object and calls a Value class."""

    def wrap(machine: Machine, obj: object, source: Source) -> Value:
        machine.guard(IdentityIs(source, obj))
        return make(obj, source)

    return wrap


def _interceptors(kind: type, obj: Any) -> Iterator[Interceptor]:
    yield from _INTERCEPTORS.get((kind, ""), ())
    if kind in _OF_LIBRARIES:
        name = vars(obj).get("__name__") if kind is types.ModuleType else obj.__module__
        if type(name) is str and (library := name.partition(".")[0]):
            yield from _INTERCEPTORS.get((kind, library), ())


def wrap_object(machine: Machine, obj: object, source: Source) -> Value:
    """Return the Value of `obj`; types that are not registered end at the wrapper of `object`."""
    kind = type(obj)
    # Some objects are known by identity (random.seed, functions of numpy), though the wrapper of
    # their type would inline them or treat them as unknown.
    for interceptor in _interceptors(kind, obj):
        if (value := interceptor(machine, obj, source)) is not None:
            return value
    if (wrapper := _EXACT.get(kind)) is not None:
        return wrapper(machine, obj, source)
    for base in kind.__mro__:
        wrapper = _SUBCLASSES.get(base) or _NAMED.get((base.__module__, base.__name__))
        if wrapper is not None:
            return wrapper(machine, obj, source)
    raise LookupError(f"no wrapper for {kind!r}")
