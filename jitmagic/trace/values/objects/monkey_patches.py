"""Detects monkey patches: objects in a library's namespace that the library did not define.

Input: an object found in a namespace or class of torch. Output: True if torch defined it, or the
standard library, whose decorators torch uses. Only an original may be modelled as a unit (a node, a
handler); a monkey patch is traced like user code. The check reads a function's globals instead of
`__module__`, which `functools.wraps` copies.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
from typing import Any

import torch

from ....compat.torch_compile import exclude_from_dynamo
from .class_facts import NOTHING, attribute_of_class, is_library_class, is_library_module

__all__ = ["MODULE", "PARAMETER", "TENSOR", "is_library_made", "unwrap_function"]

_TENSOR_BASE = torch.Tensor.__mro__[1]
_WRAPPERS = (property, functools.cached_property)


def is_library_made(obj: object) -> bool:
    """Return whether torch or the standard library defined the object or its class."""
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


# Once torch.compile has run, wrappers defined in its modules replace some of torch's functions: one
# records the creation of modules, others keep optimizers out of compiled graphs.
_DYNAMO_WRAPPERS = "torch._dynamo."


# torch wraps functions that it excludes from torch.compile (an optimizer's `add_param_group`). The
# wrapper imports torch._dynamo at its first call, which takes 2 s and is useless here.
_DISABLES_DYNAMO = exclude_from_dynamo(repr).__code__


@dataclasses.dataclass
class _DataclassWithRepr:
    """A dataclass whose `__repr__` has the wrapper that stops recursive calls.

    The wrapper writes to a set of (id, thread), which would be a side effect. It changes the result
    only for an object that contains itself, whose repr exceeds the inlining depth anyway.
    """


_STOPS_RECURSION = {
    _DataclassWithRepr.__repr__.__code__,
    reprlib.recursive_repr()(repr).__code__,  # type: ignore[attr-defined]
}


def unwrap_function(function: Any) -> Any:
    """Remove the wrappers of torch.compile and of `reprlib.recursive_repr` from a function.

    Any other function is returned unchanged.
    """
    is_repr = function.__code__ in _STOPS_RECURSION
    is_disabled = function.__code__ is _DISABLES_DYNAMO
    module = str(function.__globals__.get("__name__"))
    if not is_repr and not is_disabled and not module.startswith(_DYNAMO_WRAPPERS):
        return function
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    found = next((part for part in inside if isinstance(part, types.FunctionType)), function)
    if is_repr:
        return found
    return found if is_library_made(found) else function  # a user's own disable() must hold


def _made_by_torch(*kinds: type) -> dict[str, object]:
    """Return the attributes of the classes that torch defined, by name.

    Patched attributes are left out, since jitmagic may be imported after a patch.
    """
    names = {name for kind in kinds for name in vars(kind)}
    raws = {name: attribute_of_class(kinds[0], name) for name in names}
    return {name: raw for name, raw in raws.items() if is_library_made(raw)}


TENSOR = _made_by_torch(torch.Tensor, _TENSOR_BASE, object)
PARAMETER = {**TENSOR, **_made_by_torch(torch.nn.Parameter)}
MODULE = _made_by_torch(torch.nn.Module)
assert NOTHING not in TENSOR.values()
