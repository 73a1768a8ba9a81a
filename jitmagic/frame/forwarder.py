"""Makes a Python function around a callable that has no frame to trace.

Input: any callable that is not a plain Python function: a builtin (`torch.sin`), an object with
`__call__`, a `functools.lru_cache`, or a function that torch defines. Output: a function whose body
is just that call. The tracer then meets the callable as in a user's function, by identity, and
applies its rules for it. Otherwise it would trace the code of `torch.func.grad(f)` line by line,
down to calls that no graph can hold.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TypeGuard, cast

from ..torch_types import AnyFunction
from .library import is_of_torch_compile

__all__ = ["forwarder", "needs_forwarder"]


def needs_forwarder(target: object) -> TypeGuard[AnyFunction]:
    """Return whether `target` is a callable that can only be compiled through a call of it."""
    if isinstance(target, FunctionType):
        module = str(target.__globals__.get("__name__"))
        return module.startswith("torch.") and not is_of_torch_compile(module)
    return callable(target) and not isinstance(target, type)


def forwarder(target: AnyFunction) -> FunctionType:
    """Return a function that calls `target` with its own arguments; its `__wrapped__` is `target`.

    It accepts any arguments, because most builtins of torch have no signature. That costs 0.6 of
    the 1.5 us of a compiled call of torch.sin.
    """

    def call(*args: object, **kwargs: object) -> object:
        return target(*args, **kwargs)

    name = getattr(target, "__name__", None) or type(target).__name__
    # Diagnostics skip generated code, so the user sees what `target` runs, not this frame.
    call.__code__ = call.__code__.replace(
        co_name=name, co_qualname=name, co_filename="<jitmagic forwarder>", co_firstlineno=1
    )
    functools.update_wrapper(call, target, updated=())
    call.__name__ = call.__qualname__ = name
    return cast("FunctionType", call)
