"""Binds the arguments of a call to the values that the stub would pass to its dispatcher.

Input: a tagged function, method, partial or module, and arguments. Output: its handle and the
values: parameters in slot order, then closure cells, as the stub of bytecode/stub.py loads them.
The function is not called. Arguments that do not fit its signature raise the TypeError that a call
would raise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from ..errors import UsageError
from ..torch_types import Kwargs, Values
from .handle import Handle
from .original import parameter_count
from .tag import tagged_handle

__all__ = ["bind", "values_of"]


def bind(target: object, args: Sequence[object], kwargs: Kwargs) -> tuple[Handle, Values]:
    """Return the handle of a tagged target and the dispatcher's values for `target(*args,
    **kwargs)`.

    Raises TypeError if `target` is not tagged or the arguments do not fit its signature.
    """
    handle = tagged_handle(target)
    match target:
        case MethodType():
            return bind(target.__func__, (target.__self__, *args), kwargs)
        case functools.partial():
            return bind(target.func, (*target.args, *args), {**target.keywords, **kwargs})
        case torch.nn.Module():
            return handle, values_of(type(target).forward, (target, *args), kwargs)
        case FunctionType():
            return handle, values_of(target, args, kwargs)
    raise UsageError(f"{target!r} is not called itself: name the function or the module instance")


def values_of(function: Any, args: Sequence[object], kwargs: Kwargs) -> Values:
    """Return the values that a call passes to its dispatcher: arguments, then closure cells."""
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    code = function.__code__
    names = code.co_varnames[: parameter_count(code)]
    return (*(bound.arguments[name] for name in names), *(function.__closure__ or ()))
