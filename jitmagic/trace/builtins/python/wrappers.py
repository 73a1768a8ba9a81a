"""functools.update_wrapper, which `functools.wraps` and `contextlib.contextmanager` use.

Copies name, documentation and attributes of a Python function to a function that the traced code
made, so that recipes restore them at an exit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, ObservedError, Value
from ...values.objects.functions import FunctionValue
from ..registry import handles

__all__: list[str] = []

_DEFAULTS = {"assigned": functools.WRAPPER_ASSIGNMENTS, "updated": functools.WRAPPER_UPDATES}


@handles(functools.update_wrapper)
def _update_wrapper(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given = {**dict(zip(("wrapper", "wrapped", *_DEFAULTS), args, strict=False)), **kwargs}
    wrapper, wrapped = (given[name].realize(machine) for name in ("wrapper", "wrapped"))
    usual = all(
        given[name].realize(machine).as_constant(machine) == default
        for name, default in _DEFAULTS.items()
        if name in given
    )
    functions = isinstance(wrapper, FunctionValue) and isinstance(wrapped, FunctionValue)
    if not (usual and functions) or wrapper.live is not None:  # type: ignore[attr-defined]
        what = f"{wrapper.describe()} for {wrapped.describe()}"
        raise GraphBreak(UnsupportedArguments.of(name="functools.update_wrapper", what=what))
    assert isinstance(wrapper, FunctionValue)
    assert isinstance(wrapped, FunctionValue)
    for assigned in functools.WRAPPER_ASSIGNMENTS:
        try:
            _assign(machine, wrapper, assigned, wrapped.get_attr(machine, assigned))
        except ObservedError:  # update_wrapper skips missing attributes
            continue
    for name, value in (*_attributes(machine, wrapped), ("__wrapped__", wrapped)):
        wrapper.table(machine).put(machine, machine.constant(name), value)
    return wrapper


def _assign(machine: Machine, function: FunctionValue, name: str, value: Value) -> None:
    """Set one of the attributes that every function has."""
    match name:
        case "__annotations__":
            function.annotations = value
        case "__name__":
            function.name = str(value.realize(machine).as_constant(machine))
        case "__qualname__":
            function.qualname = str(value.realize(machine).as_constant(machine))
        case _:
            function.slots[name] = value


def _attributes(machine: Machine, function: FunctionValue) -> Iterator[tuple[str, Value]]:
    """Return the contents of the function's `__dict__`."""
    if function.live is None or function.source is not None:
        yield from function.table(machine).as_names(machine).items()
