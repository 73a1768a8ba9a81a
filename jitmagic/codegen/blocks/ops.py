"""Names the operations of the block interpreter that are not called as scalar operations are.

In: operations of sizes, or two scalar operations. Out: names in extensions/interpreter/, "" if it
has none. Others have the names of their rows (operators/scalar.py).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["OF_SIZES", "pair_name"]

OF_SIZES: Mapping[str, str] = {
    "//": "floordiv",
    "%": "remainder",
    "min": "minimum",
    "max": "maximum",
    "*": "mul",
}
"""Arithmetic of sizes on int64."""

_FIRST = ("add", "sub", "mul")  # pairs.cpp
_SECOND = {1: ("exp", "relu", "tanh", "sigmoid"), 2: ("add", "sub", "rsub", "mul")}  # by operands


def pair_name(first: str, second: str, places: tuple[int, ...], operands: int) -> str:
    """Return the operation that does the work of two: `places` of the second's operands are the
    result of the first.
    """
    if first not in _FIRST:
        return ""
    if len(places) > 1:
        return f"{first}_square" if second == "mul" else ""
    name = "rsub" if second == "sub" and places == (1,) else second
    return f"{first}_{name}" if name in _SECOND.get(operands, ()) else ""
