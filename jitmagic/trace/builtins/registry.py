"""The tables of callables implemented in C that the tracer knows.

    @handles(len)                     def _len(machine, args, kwargs) -> Value
    @method(list, "append", ...)      def _append(machine, owner, args, kwargs) -> Value

Arguments arrive realized unless the registration says `lazy=True` (for those that only store them).
A callable in no table is an UnknownCFunction break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..values.base import Args, Kwargs, Machine, Value

__all__ = ["Handler", "MethodHandler", "handler_of", "handles", "method", "method_of"]

Handler = Callable[[Machine, Args, Kwargs], Value]
MethodHandler = Callable[[Machine, Value, Args, Kwargs], Value]
_H = TypeVar("_H", bound=Callable[..., Value])

_FUNCTIONS: dict[int, tuple[object, Handler]] = {}  # by id: some callables are not hashable
_METHODS: dict[tuple[type, str], MethodHandler] = {}


def handles(*callables: object, lazy: bool = False) -> Callable[[_H], _H]:
    """Register how calls of these very objects are followed."""

    def register(handler: _H) -> _H:
        entry: Handler = handler if lazy else _realizing(handler)
        for one in callables:
            _FUNCTIONS[id(one)] = (one, entry)
        return handler

    return register


def _realizing(handler: Handler) -> Handler:
    def realized(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return handler(
            machine,
            [arg.realize(machine) for arg in args],
            {name: arg.realize(machine) for name, arg in kwargs.items()},
        )

    return realized


def handler_of(callable_: object) -> Handler | None:
    """The handler of that very object, if there is one."""
    entry = _FUNCTIONS.get(id(callable_))
    return entry[1] if entry is not None and entry[0] is callable_ else None


def method(owner: type, *names: str, lazy: bool = False) -> Callable[[_H], _H]:
    """Register how methods of a built-in type are followed."""

    def register(handler: _H) -> _H:
        def realized(machine: Machine, target: Value, args: Args, kwargs: Kwargs) -> Value:
            if lazy:
                return handler(machine, target, args, kwargs)
            keywords = {name: arg.realize(machine) for name, arg in kwargs.items()}
            return handler(machine, target, [arg.realize(machine) for arg in args], keywords)

        for name in names:
            _METHODS[owner, name] = realized
        return handler

    return register


def method_of(owner: type, name: str) -> MethodHandler | None:
    """The handler of a method, looked for along the MRO of the built-in type."""
    for base in owner.__mro__:
        if (found := _METHODS.get((base, name))) is not None:
            return found
    return None
