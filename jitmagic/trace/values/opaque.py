"""Objects that are only passed on."""

from __future__ import annotations

from ...guards.source import Source
from .base import Machine, Value

__all__ = ["OpaqueValue", "WithoutOperators"]


class WithoutOperators(Value):
    """A value none of whose operators and comparisons is followed."""

    __slots__ = ()

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"operator {op}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")


class OpaqueValue(WithoutOperators):
    """An object of a type nobody models: it can be passed on and compared by identity, no more."""

    __slots__ = ("kind",)
    opaque = True

    def __init__(self, kind: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.kind = kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def describe(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__} object"
