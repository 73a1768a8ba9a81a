"""Detects builtins that the program has replaced and that jitmagic or torch use while compiling.

Output: the name of a builtin function or class that is not the object it was when jitmagic was
imported. A replaced `len` that counts its calls would count the compiler's, and one that returns
other lengths breaks it: frames run as eager until it is restored. Builtins that write, read or
import are exempt: many tools wrap them (rich, IPython, lazy imports), and no result depends on it.

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
    """Return the name of a replaced builtin, or None if none is."""
    for name, original in _ORIGINAL.items():
        if name not in _NOW or _NOW[name] is not original:
            return name
    return None
