"""Patched names: functions of a graph that their qualified names no longer lead to.

Comes in: a finished torch-level graph. Goes out: the same, where the code that fx writes calls what
the graph holds. fx writes `torch.nn.functional.silu(x)`; where the program has put another function
under that name, the code would call that one.
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
    """Give functions of torch that are not found under their names a name of their own."""
    for node in graph.nodes:
        target = node.target
        of_python = isinstance(target, types.FunctionType | types.BuiltinFunctionType)
        if of_python and node.op == "call_function" and not _is_found(target):
            node.target = _under_another_name(target)


def _is_found(function: Callable[..., Any]) -> bool:
    """Whether fx's name for a function leads to it; what is not torch's is no name to fx."""
    if not (function.__module__ or "torch").startswith("torch"):
        return True
    try:
        path = _get_qualified_name(function).split(".")
    except RuntimeError:  # fx finds no module that has it
        return False
    if path[0] != "torch":
        return True
    found: Any = torch
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is function


def _under_another_name(function: Callable[..., Any]) -> Callable[..., Any]:
    def original(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    original.__name__ = f"original_{function.__name__}"
    return original
