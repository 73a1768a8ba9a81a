"""Renames torch functions of a graph that were replaced under their qualified names.

fx generates `torch.nn.functional.silu(x)` for a call of silu. Where the program has patched that
attribute, the generated code would call the replacement instead of the function in the graph.
Input: a finished torch-level graph. Output: the same graph, with wrappers for such functions.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph
from torch.fx.node import _get_qualified_name

__all__ = ["call_by_identity"]


def call_by_identity(graph: Graph) -> None:
    """Wrap torch functions that are not found under their qualified names."""
    for node in graph.nodes:
        target = node.target
        of_python = isinstance(target, types.FunctionType | types.BuiltinFunctionType)
        if of_python and node.op == "call_function" and not _is_found(target):
            node.target = _under_another_name(target)


def _is_found(function: Callable[..., Any]) -> bool:
    """Return whether fx's name for a function resolves to it; fx needs no name outside torch."""
    if not (function.__module__ or "torch").startswith("torch"):
        return True
    try:
        path = _get_qualified_name(function).split(".")
    except RuntimeError:  # raised by fx if no module has the function
        return False
    if path[0] != "torch":
        return True
    found: Any = torch
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is function


def _under_another_name(function: Callable[..., Any]) -> Callable[..., Any]:
    def original(*args: object, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    original.__name__ = f"original_{function.__name__}"
    return original
