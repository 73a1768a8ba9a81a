"""A class that a saved function returns: the process that loads it imports this module."""

from __future__ import annotations

from collections import namedtuple

__all__ = ["Pair"]

Pair = namedtuple("Pair", "left right")
