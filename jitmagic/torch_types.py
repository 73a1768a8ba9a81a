"""Names the types of torch calls that have no public name of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .compat.operators import OpOverload

__all__ = ["AnyFunction", "OpOverload"]

AnyFunction = Callable[..., Any]
"""A function with any signature: a torch function, or a rule for the arguments of one operator."""
