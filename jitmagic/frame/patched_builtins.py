"""Builtins that the program has replaced, on which jitmagic and torch rely while they compile.

Comes in: nothing. Goes out: the name of a builtin function or class that is another object than
when jitmagic was imported. `len` that counts its calls would count the compiler's, and one that
gives other lengths breaks it: frames run as eager as long as it is there. What writes, reads or
imports is wrapped by many tools (rich, IPython, lazy imports), and no result depends on it.

The check runs at each miss: 150 comparisons, 4 µs. It calls nothing that might be replaced.
"""

from __future__ import annotations

import builtins
from types import BuiltinFunctionType

__all__ = ["replaced_builtin"]

_OUTSIDE = frozenset(
    "__build_class__ __import__ breakpoint compile eval exec input open print".split()
)
_NOW = vars(builtins)
_ORIGINAL = {
    name: value
    for name, value in _NOW.items()
    if isinstance(value, BuiltinFunctionType | type) and name not in _OUTSIDE
}


def replaced_builtin() -> str | None:
    """The name of one that is replaced; None: all are as they were."""
    for name, original in _ORIGINAL.items():
        if name not in _NOW or _NOW[name] is not original:
            return name
    return None
