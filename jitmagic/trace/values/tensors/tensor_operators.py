"""Maps the signs of Python's operators to the functions that the graph calls."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

__all__ = ["BINARY", "COMPARE", "INPLACE", "UNARY"]

BINARY: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "@": operator.matmul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
INPLACE: dict[str, Callable[..., Any]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv,
    "//": operator.ifloordiv, "%": operator.imod, "**": operator.ipow, "@": operator.imatmul,
    "&": operator.iand, "|": operator.ior, "^": operator.ixor,
    "<<": operator.ilshift, ">>": operator.irshift,
}  # fmt: skip
COMPARE: dict[str, Callable[..., Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert,
}  # fmt: skip
