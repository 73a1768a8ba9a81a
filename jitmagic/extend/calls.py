"""Registers how the tracer follows calls of a function, instead of reading its bytecode.

    register_call(fn, replacement=g)      g is traced in its place
    register_call(fn, as_node=True)       the call is one node of the captured graph
    register_call(fn, as_constant=True)   it is called during the compile; its result is a constant

`substitute_in_graph`, `allow_in_graph`, `nonstrict_trace` and `assume_constant_result` are the
decorators of these, named as torch.compiler's. Functions registered with torch.compiler are known
too. Output: `call_of`, which the tracer asks for each function that the program calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..compat.torch_compile import mark_of
from ..errors import UsageError
from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction
from .registry import Registration, Registry

__all__ = [
    "CALLS",
    "RegisteredCall",
    "allow_in_graph",
    "assume_constant_result",
    "call_of",
    "nonstrict_trace",
    "register_call",
    "substitute_in_graph",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredCall:
    """Describes how calls of `function` are followed.

    kind: "replaced", "node" or "constant"
    replacement: the function that is traced in place of a replaced one
    """

    function: Any
    kind: str
    replacement: Any = None


CALLS: Registry[RegisteredCall] = Registry("function")


def register_call(
    fn: F,
    /,
    *,
    replacement: AnyFunction | None = None,
    as_node: bool = False,
    as_constant: bool = False,
    name: str | None = None,
) -> Registration:
    """Register how calls of `fn` are followed; exactly one way is given.

    replacement: a Python function with the same parameters and results, which is traced instead
    as_node: the call is a node of the captured graph. It runs on tensors without data during the
        compile, and again when its ATen operations are recorded. Its arguments are tensors,
        constants, and lists, tuples and dicts of these. What it reads besides is not guarded
    as_constant: called during the compile on constant arguments. What it reads is not guarded
    name: for messages and for `unregister`; by default the function's, with its module

    fn: a Python function or a function written in C; a method is registered as a function of its
    class, `register_call(Model.scale, ...)`. In code that runs as plain Python it is called as is.

    Registering or removing makes all tagged functions compile again at their next call. Returns a
    `Registration`, which a `with` block removes at its end. Raises UsageError for what is not a
    function, for other than one way, and for a name that is taken.
    """
    if not callable(fn) or isinstance(fn, type) or inspect.ismethod(fn):
        raise UsageError(f"register_call takes a function, not {fn!r}")
    if (replacement is not None) + as_node + as_constant != 1:
        raise UsageError("register_call takes one of replacement=, as_node=True, as_constant=True")
    if replacement is not None and not inspect.isfunction(replacement):
        raise UsageError(f"a replacement is a Python function, not {replacement!r}")
    chosen = _name_of(fn) if name is None else name
    if replacement is None:
        return CALLS.add(chosen, RegisteredCall(fn, "node" if as_node else "constant"))
    _check_parameters(fn, replacement)
    return CALLS.add(chosen, RegisteredCall(fn, "replaced", replacement))


def substitute_in_graph(original: AnyFunction, /) -> Callable[[F], F]:
    """Return a decorator of the Python function that is traced in place of `original`."""

    def register(replacement: F) -> F:
        register_call(original, replacement=replacement)
        return replacement

    return register


def allow_in_graph(fn: F, /) -> F:
    """Make calls of the function nodes of captured graphs, and return it."""
    register_call(fn, as_node=True)
    return fn


nonstrict_trace = allow_in_graph


def assume_constant_result(fn: F, /) -> F:
    """Make results of the function constants of a compile, and return it."""
    register_call(fn, as_constant=True)
    return fn


def call_of(function: Any) -> RegisteredCall | None:
    """Return how calls of this object are followed, if it was registered here or with torch."""
    for row in CALLS.rows.values():
        if row.function is function:
            return row
    mark = mark_of(function)
    if mark is None:
        return None
    return RegisteredCall(function, *mark)


def _name_of(fn: Any) -> str:
    module = getattr(fn, "__module__", None)
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", type(fn).__name__)
    return f"{module}.{name}" if module else str(name)


def _check_parameters(fn: AnyFunction, replacement: AnyFunction) -> None:
    """Raise UsageError if the two functions take different parameters, as far as Python knows."""
    try:
        wanted = inspect.signature(fn)
    except (TypeError, ValueError):  # many functions written in C have no signature
        return
    given = inspect.signature(replacement)
    kinds = [one.kind for one in given.parameters.values()]
    takes_anything = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    expected, found = (
        [(p.name, p.kind) for p in one.parameters.values()] for one in (wanted, given)
    )
    if expected != found and not takes_anything:
        raise UsageError(
            f"the replacement takes {given}, and {_name_of(fn)} takes {wanted}: give it the same "
            "parameters"
        )
