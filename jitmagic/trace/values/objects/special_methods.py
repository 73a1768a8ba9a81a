"""Maps operators to special methods (`+` to `__add__`) and evaluates comparisons by them."""

from __future__ import annotations

from ....protocols import Protocol
from ..base import Machine, Value
from .constants import ConstantValue

__all__ = ["BINARY_METHODS", "COMPARE_METHODS", "UNARY_METHODS", "by_special", "implemented"]

BINARY_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
COMPARE_METHODS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
UNARY_METHODS = {"-": "neg", "+": "pos", "~": "invert"}


class _WithMethods(Protocol):
    def special(self, machine: Machine, name: str, *args: Value) -> Value | None: ...


def by_special(machine: Machine, left: _WithMethods, op: str, right: Value) -> Value | None:
    """Evaluate a comparison by the special methods of the left operand's class."""
    # The class's own `__ne__` comes first, which may differ from the inverse of its `__eq__`.
    result = implemented(left.special(machine, f"__{COMPARE_METHODS[op]}__", right))
    if result is None and op == "!=":  # object.__ne__ inverts __eq__
        same = implemented(left.special(machine, "__eq__", right))
        return None if same is None else machine.constant(not same.truth(machine))
    return result


def implemented(result: Value | None) -> Value | None:
    """Return the result of a special method, or None if it is NotImplemented."""
    if isinstance(result, ConstantValue) and result.value is NotImplemented:
        return None
    return result
