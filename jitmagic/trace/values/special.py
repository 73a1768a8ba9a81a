"""The names of the special methods behind operators."""

from __future__ import annotations

from .base import Value
from .constants import ConstantValue

__all__ = ["BINARY_METHODS", "COMPARE_METHODS", "UNARY_METHODS", "implemented"]

BINARY_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
COMPARE_METHODS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
UNARY_METHODS = {"-": "neg", "+": "pos", "~": "invert"}


def implemented(result: Value | None) -> Value | None:
    """What a special method gave; None where that is NotImplemented."""
    if isinstance(result, ConstantValue) and result.value is NotImplemented:
        return None
    return result
