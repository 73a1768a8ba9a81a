"""Models objects that the program may pass around but not use, or never sees."""

from __future__ import annotations

from collections.abc import Callable

from ....guards.source import Source
from ...result import Recipe
from ..base import Builder, Machine, Value
from ..containers.keys import identity_key, pure_key

__all__ = ["HiddenValue", "OpaqueValue", "WithoutOperators"]


class WithoutOperators(Value):
    """A base for values whose operators and comparisons break the graph."""

    __slots__ = ()

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        # None, the default, means NotImplemented: the trace would raise a TypeError that the
        # program does not raise if the class defines the operator.
        self.refuse(machine, f"operator {op}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")


class HiddenValue(Value):
    """An object that only the emitted code sees; `build` returns its recipe."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[Builder], Recipe]) -> None:
        super().__init__()
        self.build = build

    def recipe(self, builder: Builder) -> Recipe:
        return self.build(builder)


class OpaqueValue(WithoutOperators):
    """An object whose type has no model; it can be passed on and compared by identity."""

    __slots__ = ("kind", "live")
    opaque = True

    def __init__(self, kind: type, source: Source | None, live: object) -> None:
        super().__init__(source)
        self.kind = kind
        self.live = live

    def hash_key(self, machine: Machine) -> object:
        return identity_key(machine, self) or pure_key(machine, self, self.live)

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def describe(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__} object"
