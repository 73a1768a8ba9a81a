"""Defines which values guards compare by content, and their equality.

Input: the user's values. Output: whether they are compared by content, and whether two are equal:
same exact type, floats bit by bit (nan equals nan, 0.0 differs from -0.0). Agrees with the native
check (extensions/frame/constants.cpp). Runs no user code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import torch

from .live_objects import is_array_scalar

__all__ = ["exact_name", "is_constant", "same_constant"]

_SCALARS = (str, int, bool, float, complex, bytes, range, type(None), type(...), torch.device)
_ELEMENTWISE = (str, int, bytes, range, torch.device)


def is_constant(value: object) -> bool:
    """Return whether native and Python checks compare the value by content, not by identity."""
    kind = type(value)
    if kind in _SCALARS or value is NotImplemented or is_array_scalar(kind):
        return True
    if issubclass(kind, tuple) or kind is frozenset:
        return all(is_constant(item) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, slice):
        return is_constant((value.start, value.stop, value.step))
    return False


def same_constant(left: Any, right: Any) -> bool:
    """Return whether two values are equal as the native check compares them."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in _ELEMENTWISE:
        return bool(left == right)
    if is_array_scalar(kind):
        return bool(left.tobytes() == right.tobytes())
    if kind is float:
        return struct.pack("d", left) == struct.pack("d", right)
    if kind is complex:
        return same_constant(left.real, right.real) and same_constant(left.imag, right.imag)
    if issubclass(kind, tuple):
        return _same_items(tuple.__iter__(left), tuple.__iter__(right))
    if kind is slice:
        return _same_items(
            (left.start, left.stop, left.step), (right.start, right.stop, right.step)
        )
    if kind is frozenset:
        return len(left) == len(right) and all(
            any(same_constant(a, b) for b in right) for a in left
        )
    return False


def _same_items(left: Iterable[object], right: Iterable[object]) -> bool:
    a, b = list(left), list(right)
    return len(a) == len(b) and all(map(same_constant, a, b))


def exact_name(name: str) -> str:
    """Return a name as a plain str, which native code compares character by character."""
    return name if type(name) is str else str.__str__(name)
