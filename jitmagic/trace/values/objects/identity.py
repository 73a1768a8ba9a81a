"""Provides the base class of values guarded by identity, such as disabled functions and locks.

Input: a live object whose identity is guarded. Output: its type, truth and hash, which the identity
implies; subclasses define the rest.
"""

from __future__ import annotations

from typing import Any

from ....guards.source import Source
from ...result import Constant, Recipe
from ..base import Builder, Machine, Value

__all__ = ["IdentityValue"]


class IdentityValue(Value):
    """An object guarded by identity that is true and has the hash of `object`."""

    __slots__ = ("live",)
    # These are objects of exact types, which override neither `__bool__` nor `__len__`.
    always_true = True
    by_identity = True

    def __init__(self, live: object, source: Source | None = None) -> None:
        super().__init__(source)
        self.live: Any = live  # a subclass knows its type

    def python_type(self, machine: Machine) -> type:
        return type(self.live)

    def identity(self) -> object:
        return self.live

    def hash_key(self, machine: Machine) -> object:
        return self.live

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.live)
