"""Names the types of calls and graphs that have no public name of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .compat.operators import OpOverload

__all__ = ["AnyFunction", "Executable", "Keywords", "Namespace", "OpOverload", "Values"]

AnyFunction = Callable[..., Any]  # of the user or torch, or a rule for an operator's arguments
Executable = Callable[..., tuple[Any, ...]]  # runs a graph: inputs -> a flat tuple of its outputs
Values = tuple[object, ...]  # arguments of a call, or of a frame in the order of its variables
Keywords = Mapping[str, object]  # keyword arguments of a call
Namespace = dict[str, object]  # variables of a module or class by name
