"""Callables and other objects known by identity: whichever path leads there, it is that object.

Comes in: a live object whose identity is guarded. Goes out: what holds for all of them; what they
do when they are called is their subclasses'.
"""

from __future__ import annotations

from typing import Any

from ....guards.source import Source
from ..base import Machine, Value

__all__ = ["IdentityValue"]


class IdentityValue(Value):
    """An object known by identity, true and hashed by C code."""

    __slots__ = ("live",)
    by_identity = True

    def __init__(self, live: Any, source: Source) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return type(self.live)

    def identity(self) -> object:
        return self.live

    def hash_key(self, machine: Machine) -> object:
        return self.live

    def truth(self, machine: Machine) -> bool:
        return True
