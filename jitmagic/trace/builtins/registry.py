"""The tables of callables implemented in C that the tracer knows.

    @handles(len)                     def _len(machine, args, kwargs) -> Value
    @handles_named("torch.onnx", "is_in_onnx_export")   of a module that is slow to import
    @method(list, "append", ...)      def _append(machine, owner, args, kwargs) -> Value

A handler may instead name the parameters of the call, `def _len(machine, value)`, and return a
Python constant; tables of such handlers are `calls({len: ...})` and `methods(list, {"append":
...})`. Arguments that the parameters do not take are a graph break: Python may raise there.

Lazy arguments are realized (read and guarded) before the call, except with `lazy=True`: a handler
that only stores its arguments should not cause guards on them.
Keywords are bound to the signature of the callable first: a handler gets those that name positional
parameters as positional arguments. Keywords that the signature refuses are a graph break, after
which Python raises. `like` declares the signature of a callable that Python knows none of.
A callable in no table is an UnknownCFunction break. What users have registered by
`extend.register_call` comes first.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from inspect import Parameter
from operator import itemgetter
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

from ...extend.calls import RegisteredCall, call_of
from ...late_tables import LateTable, class_name, object_name, package_of
from ..breaks import GraphBreak, UnsupportedArguments
from ..values.base import Args, Kwargs, Machine, Value

__all__ = [
    "AS_GIVEN",
    "Act",
    "CallHandler",
    "MethodHandler",
    "calls",
    "follows",
    "handler_of",
    "handles",
    "handles_named",
    "load_named",
    "method",
    "method_of",
    "methods",
    "parameters_of",
]

CallHandler = Callable[[Machine, Args, Kwargs], Value]
MethodHandler = Callable[[Machine, Value, Args, Kwargs], Value]
Act = Callable[..., object]
_H = TypeVar("_H", bound=Callable[..., object])
_Bind = Callable[[Machine, Args, Kwargs], tuple[Args, Kwargs]]


def AS_GIVEN(*args: object, **kwargs: object) -> None:
    """Declare, as `like`, that a handler binds keywords itself or leaves them to torch."""


# By name and id: some callables are not hashable.
_FUNCTIONS: LateTable[tuple[str, int], tuple[object, CallHandler]] = LateTable(
    "calls", itemgetter(0)
)
_NAMED: LateTable[str, tuple[str, CallHandler]] = LateTable("calls by name")  # with the module
_SLOW_MODULES: LateTable[str, bool] = LateTable("modules of calls by name")
_METHODS: LateTable[tuple[type, str], MethodHandler] = LateTable(
    "methods", lambda key: f"{class_name(key[0])}.{key[1]}"
)
_FOLLOWED: LateTable[str, Callable[[RegisteredCall, Machine, Args, Kwargs], Value]] = LateTable(
    "registered calls"
)


def handles(*callables: object, lazy: bool = False, like: Act | None = None) -> Callable[[_H], _H]:
    """Register a handler for calls of these objects, compared by identity."""

    def register(handler: _H) -> _H:
        for one in callables:
            if _is_patch(one):
                continue
            act = _with_whole_call(handler, one)
            entry = _entry(act, _binder(partial(_itself, one), like), lazy)
            # Of two handlers for a kernel of attention, the one imported last had won unnoticed.
            row = one, entry
            assert _FUNCTIONS.setdefault(_key(one), row) is row, f"{one!r} has two handlers"
        return handler

    return register


def _is_patch(callable_: object) -> bool:
    """Return whether the program has replaced the function before its handler was imported.

    A handler of `nn.Module.__call__` would else have modelled the user's function in its place.
    """
    return type(callable_) is FunctionType and package_of(callable_) not in _LIBRARIES


_LIBRARIES = {"jitmagic", "numpy", "torch", "triton", *sys.stdlib_module_names}


def _key(callable_: object) -> tuple[str, int]:
    return object_name(callable_), id(callable_)


def _itself(callable_: object) -> object:
    return callable_


def _binder(find: Callable[[], object], like: Act | None, *, of_owner: bool = False) -> _Bind:
    """Return a function that binds the arguments of a call to the signature of a callable.

    `of_owner`: the first parameter is the owner, which is not among the arguments.
    """
    if like is AS_GIVEN:
        return lambda machine, args, kwargs: (args, kwargs)

    @cache  # inspecting takes 20 us
    def parameters() -> inspect.Signature | None:
        try:
            found = inspect.signature(like) if like else _signature(find())
        except (AttributeError, TypeError, ValueError):
            return None
        is_bound = isinstance(getattr(find(), "__self__", None), type)  # a classmethod
        names = list(found.parameters.values())
        return found.replace(parameters=names[1:] if of_owner and not is_bound else names)

    def bind(machine: Machine, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        signature = parameters()
        # A declared signature describes calls with keywords alone: int() takes no argument too.
        if not kwargs and (signature is None or like):
            return args, kwargs
        try:
            if signature is None:
                raise TypeError
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            raise _refused(find()) from None
        if not kwargs:
            return args, kwargs
        named = [one for one in signature.parameters.values() if one.kind in _POSITIONAL]
        while named and named[-1].name not in given:
            named.pop()
        if any(one.name not in given and one.default is _UNKNOWN for one in named):
            raise _refused(find())
        made = [
            given[one.name] if one.name in given else machine.constant(one.default) for one in named
        ]
        taken = {one.name for one in named if one.kind is Parameter.POSITIONAL_OR_KEYWORD}
        rest = {name: value for name, value in kwargs.items() if name not in taken}
        return [*made, *args[len(made) :]], rest

    return bind


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_UNKNOWN = object()  # a default that the code object of a function does not show


def _signature(callable_: Any) -> inspect.Signature:
    if not isinstance(callable_, CodeType):
        return inspect.signature(callable_)
    # The handler's first argument is the function.
    first = Parameter("_function", Parameter.POSITIONAL_ONLY)
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    names = [
        one if one.kind in variadic else one.replace(default=_UNKNOWN)
        for one in parameters_of(callable_)
    ]
    return inspect.Signature([first, *names])


def parameters_of(code: CodeType) -> list[Parameter]:
    """Return the parameters of a function with this code, without their defaults."""
    cells = tuple(CellType() for _ in code.co_freevars)
    return [*inspect.signature(FunctionType(code, {}, closure=cells)).parameters.values()]


def _refused(callable_: object) -> GraphBreak:
    name = str(getattr(callable_, "__name__", callable_))
    return GraphBreak(UnsupportedArguments.of(name=name, what="such arguments"))


def calls(rows: Mapping[Any, Act], like: Act | None = None) -> None:
    """Register functions by a table of short handlers."""
    for function, act in rows.items():
        handles(function, like=like)(act)


def _with_whole_call(handler: Act, called: object) -> Act:
    """Return a handler of `args` and `kwargs`."""
    function = handler.func if isinstance(handler, partial) else handler
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    if names[-2:] == ("args", "kwargs"):
        return handler
    assert not {"args", "kwargs"}.intersection(names), f"{function} takes only one of the two"
    return partial(_act, str(getattr(called, "__name__", called)), handler)


def _act(name: str, act: Act, machine: Machine, *call: Any) -> object:
    *owner, args, kwargs = call
    given = machine, *owner, *args
    try:
        return act(*given, **kwargs)
    except TypeError:
        try:
            # A TypeError that the act itself raised is a mistake of jitmagic. It must not pass for
            # wrong arguments of the program.
            inspect.signature(act).bind(*given, **kwargs)
        except TypeError:
            what = "such arguments"
            raise GraphBreak(UnsupportedArguments.of(name=name, what=what)) from None
        raise


def handles_named(module: str, name: str) -> Callable[[_H], _H]:
    """Register a handler for a Python function of a module that is slow to import.

    torch.onnx takes 45 ms, a seventh of a first compile, and torch imports it at first access.
    torch.compile wraps some functions only when it is imported.
    """

    def register(handler: _H) -> _H:
        bind = _binder(lambda: vars(sys.modules[module])[name], None)
        _NAMED[name] = module, _entry(_with_whole_call(handler, name), bind, lazy=False)
        _SLOW_MODULES[module] = True
        return handler

    return register


def load_named(module: str) -> None:
    """Import such a module when the traced program reads it, before any fact is read of it.

    Only modules of `handles_named` are imported; importing any other is left to the program, by a
    graph break.
    """
    if module not in sys.modules and module in _SLOW_MODULES:
        importlib.import_module(module)


def _entry(handler: Act, bind: _Bind, lazy: bool) -> Callable[..., Value]:
    """Bind and realize the arguments before `handler`; a method's owner comes before them."""
    counts: set[int] = set()  # of positional arguments that fitted in a call before

    def entry(machine: Machine, *call: Any) -> Value:
        *owner, args, kwargs = call
        if kwargs or len(args) not in counts:
            args, kwargs = bind(machine, args, kwargs)
            counts.update(() if kwargs else (len(args),))
        if not lazy:
            args = [arg.realize(machine) for arg in args]
            kwargs = {name: arg.realize(machine) for name, arg in kwargs.items()}
        made = handler(machine, *owner, args, kwargs)
        return made if isinstance(made, Value) else machine.constant(made)

    return entry


def follows(kind: str) -> Callable[[_H], _H]:
    """Register how calls are followed that users have registered as of this kind."""

    def register(handler: _H) -> _H:
        _FOLLOWED[kind] = handler  # type: ignore[assignment]
        return handler

    return register


def handler_of(callable_: object) -> CallHandler | None:
    """Return the handler registered for this object, if there is one: a user's, or jitmagic's."""
    if (call := call_of(callable_)) is not None:
        return partial(_FOLLOWED[call.kind], call)
    entry = _FUNCTIONS.get(_key(callable_))
    if entry is not None and entry[0] is callable_:
        return entry[1]
    return _named_handler(callable_) if isinstance(callable_, FunctionType) else None


def _named_handler(function: FunctionType) -> CallHandler | None:
    module, handler = _NAMED.get(function.__name__, ("", None))
    loaded = sys.modules.get(module)
    found = None if loaded is None else vars(loaded).get(function.__name__)
    # torch.compile, once it has run, replaces some functions by wrappers; triton.constexpr_function
    # makes objects.
    inside = "__wrapped__" if isinstance(found, FunctionType) else "fn"
    within = getattr(found, "__dict__", {}).get(inside)
    is_it = function is found or function is within
    # A user's function that has replaced the module's has the same place there, but globals of
    # another package.
    made_by, _, _ = str(function.__globals__.get("__name__")).partition(".")
    return handler if is_it and made_by == module.partition(".")[0] else None


def method(
    owner: type, *names: str, lazy: bool = False, like: Act | None = None
) -> Callable[[_H], _H]:
    """Register a handler for methods of a built-in type."""

    def register(handler: _H) -> _H:
        for name in names:
            bind = _binder(partial(getattr, owner, name), like, of_owner=True)
            _METHODS[owner, name] = _entry(_with_whole_call(handler, name), bind, lazy)
        return handler

    return register


def methods(owner: type, rows: Mapping[str, Act], lazy: bool = False) -> None:
    """Register methods by a table of short handlers."""
    for name, act in rows.items():
        method(owner, name, lazy=lazy)(act)


def method_of(owner: type, name: str) -> MethodHandler | None:
    """Return the handler of a method, searched along the MRO of the built-in type."""
    for base in owner.__mro__:
        if (found := _METHODS.get((base, name))) is not None:
            return found
    return None
