"""Names the types of torch calls that have no public name of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .compat.operators import OpOverload

__all__ = ["AnyFunction", "Args", "Executable", "Kwargs", "Namespace", "OpOverload", "Values"]

AnyFunction = Callable[..., Any]  # of the user or torch, or a rule for an operator's arguments
Executable = Callable[..., tuple[Any, ...]]  # runs a graph: inputs -> a flat tuple of its outputs
Args = Sequence[object]  # arguments of a call that are passed on or compared
Kwargs = Mapping[str, object]  # its keyword arguments
Values = tuple[object, ...]  # arguments of a frame in the order of its variables, or results
Namespace = dict[str, object]  # variables of a module or class by name
