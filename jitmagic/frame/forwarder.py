"""forwarder: a Python function that calls something which cannot be traced as a frame of its own.

Comes in: any callable that is no plain Python function: a builtin (`torch.sin`), an object with
`__call__`, a `functools.lru_cache`, or a function that torch defines. Goes out: a function whose
whole body is that call. The tracer then meets the callable as it does in a user's function, by
identity, and applies what it knows of it: it would follow the code of `torch.func.grad(f)` line by
line otherwise, down to calls that no graph can hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from .library import is_of_torch_compile

__all__ = ["forwarder", "needs_forwarder"]


def needs_forwarder(target: Any) -> bool:
    """Return whether `target` is a callable that can only be compiled through a call of it."""
    if isinstance(target, FunctionType):
        module = str(target.__globals__.get("__name__"))
        return module.startswith("torch.") and not is_of_torch_compile(module)
    return callable(target) and not isinstance(target, type)


def forwarder(target: Callable[..., Any]) -> FunctionType:
    """Return a function that calls `target` with its own arguments; its `__wrapped__` is `target`.

    It takes any arguments, because most builtins of torch do not say what they take.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    name = getattr(target, "__name__", None) or type(target).__name__
    # Diagnostics pass over generated code: the user is shown what `target` runs, not this frame.
    call.__code__ = call.__code__.replace(
        co_name=name, co_qualname=name, co_filename="<jitmagic forwarder>", co_firstlineno=1
    )
    functools.update_wrapper(call, target, updated=())
    call.__name__ = call.__qualname__ = name
    return cast("FunctionType", call)
