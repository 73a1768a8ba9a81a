"""Describes values and differences in words without running user code.

Input: values, classes, names. Output: short text without addresses, the building blocks of the
sentences made in kinds/. The code uses type(), never `isinstance`, which would read a user-defined
`__class__`.
"""

from __future__ import annotations

import numbers
import types
from collections.abc import Sequence
from reprlib import recursive_repr
from typing import Any

import torch

from .guard import ANY_KEY

__all__ = ["class_name", "difference", "few", "one_value", "range_end", "short"]

_PLAIN = (str, int, bool, float, complex, bytes, range, slice, type(None), type(...))
_NAMED = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.WrapperDescriptorType,
    types.MethodDescriptorType,
)  # fmt: skip
_WIDTH = 60  # characters of a value in a sentence
_MOST = 6  # names listed before "and N more"


def short(value: object) -> str:
    """Describe a value in a sentence: constants by repr, objects by kind and name."""
    kind = type(value)
    if issubclass(kind, type):
        text = class_name(value)  # type: ignore[arg-type]
    elif (
        kind in _PLAIN
        or value is ANY_KEY
        or (kind.__module__ == "numpy" and issubclass(kind, numbers.Real))
    ):
        text = repr(value)
    elif kind in (list, tuple, dict):
        text = _short_container(value)
    elif kind in (torch.dtype, torch.device, torch.Size):
        text = str(value)
    elif issubclass(kind, _NAMED):
        text = f"{kind.__name__} {_own_name(value)}"
    else:
        text = f"a {kind.__qualname__}"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _own_name(value: Any) -> object:
    """Return the name of an object without calling a module's `__getattr__`."""
    if issubclass(type(value), types.ModuleType):
        return object.__getattribute__(value, "__dict__").get("__name__")
    return value.__qualname__


@recursive_repr()
def _short_container(value: Any) -> str:
    if type(value) is dict and "__builtins__" in value:
        return f"the globals of {value.get('__name__')}"
    if type(value) is dict:
        return "{" + ", ".join(f"{short(k)}: {short(v)}" for k, v in list(value.items())[:8]) + "}"
    inner = ", ".join(short(item) for item in value[:8])
    return f"[{inner}]" if type(value) is list else f"({inner}{',' * (len(value) == 1)})"


def class_name(cls: type) -> str:
    """Return module and name of a class without consulting its metaclass."""
    module, name = (type.__getattribute__(cls, part) for part in ("__module__", "__qualname__"))
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def difference(what: str, now: object, before: object, same: bool) -> str | None:
    """Return "`what` is `now`, was `before`", or None if they are the same."""
    return None if same else f"{what} is {now}, was {before}"


def range_end(number: float) -> str:
    """Format an end of a range."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def one_value(name: str) -> str:
    """Return the hint for a number that has to be a constant of compiled code."""
    return f"have one {name} in all calls, or a tagged function for each"


def few(names: Sequence[str]) -> str:
    """List the first names and the number of the others."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join(names[:_MOST])}{more}"
