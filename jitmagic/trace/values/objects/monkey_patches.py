"""Monkey patches: whether a library made what is found under one of its names.

Comes in: an object found in a namespace or class of torch. Goes out: whether torch (or the standard
library, whose decorators torch uses) made it. What torch made is modelled as a whole, without a
look at its parts; anything else found there is the user's and is followed like the user's own code.
`__module__` says nothing: `functools.wraps` copies it.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
from typing import Any

import torch
from torch._compile import _disable_dynamo

from .class_facts import NOTHING, attribute_of_class, is_library_class, is_library_module

__all__ = ["MODULE", "PARAMETER", "TENSOR", "beneath", "is_library_made"]

_TENSOR_BASE = torch.Tensor.__mro__[1]
_WRAPPERS = (property, functools.cached_property)


def is_library_made(obj: object) -> bool:
    """Whether torch or the standard library made the object; constants are anybody's."""
    if isinstance(obj, types.FunctionType):
        return is_library_module(obj.__globals__.get("__name__"))
    if isinstance(obj, types.MethodType | staticmethod | classmethod):
        return is_library_made(obj.__func__)
    if isinstance(obj, _WRAPPERS):
        return is_library_made(obj.fget if isinstance(obj, property) else obj.func)
    if isinstance(obj, functools.partial):
        return is_library_made(obj.func)
    if isinstance(obj, types.ModuleType):
        return is_library_module(obj.__name__)
    return is_library_class(obj if isinstance(obj, type) else type(obj))


# Once torch.compile has run, functions of its modules stand around torch's own: one notes when
# modules are made, others keep optimizers out of what it compiles.
_AROUND = "torch._dynamo."


# Around what torch itself keeps from torch.compile (an optimizer's `add_param_group`) stands a
# function that imports torch._dynamo at its first call: 2 s, which compiled code does not need.
_KEEPS_FROM_COMPILE = _disable_dynamo(repr).__code__


@dataclasses.dataclass
class _Told:
    """Its `__repr__` stands around one that notes, by id and thread, what is being told already:
    of use only where an object holds itself, and that is too deep to be inlined."""


_TELLS_ONCE = {_Told.__repr__.__code__, reprlib.recursive_repr()(repr).__code__}  # type: ignore[attr-defined]


def beneath(function: Any) -> Any:
    """The function itself, or torch's own that torch.compile put one of its functions around or
    that torch keeps from it, or the `__repr__` of a class that does not tell of itself twice."""
    is_told = function.__code__ in _TELLS_ONCE
    is_kept = function.__code__ is _KEEPS_FROM_COMPILE
    module = str(function.__globals__.get("__name__"))
    if not is_told and not is_kept and not module.startswith(_AROUND):
        return function
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    found = next((one for one in inside if isinstance(one, types.FunctionType)), function)
    if is_told:
        return found
    return found if is_library_made(found) else function  # what a user disabled stays disabled


def _made_by_torch(*kinds: type) -> dict[str, object]:
    """What the classes have as torch made them, by name; jitmagic may be imported after a patch."""
    names = {name for kind in kinds for name in vars(kind)}
    raws = {name: attribute_of_class(kinds[0], name) for name in names}
    return {name: raw for name, raw in raws.items() if is_library_made(raw)}


TENSOR = _made_by_torch(torch.Tensor, _TENSOR_BASE, object)
PARAMETER = {**TENSOR, **_made_by_torch(torch.nn.Parameter)}
MODULE = _made_by_torch(torch.nn.Module)
assert NOTHING not in TENSOR.values()
