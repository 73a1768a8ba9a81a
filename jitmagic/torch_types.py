"""Names the types of torch calls that have no public name of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .compat.operators import OpOverload

__all__ = ["AnyFunction", "Args", "Kwargs", "OpOverload"]

AnyFunction = Callable[..., Any]
"""A function with any signature: a torch function, or a rule for the arguments of one operator."""

Args = Sequence[object]
Kwargs = Mapping[str, object]
"""The arguments of a call that are passed on, or compared, but not used one by one."""
