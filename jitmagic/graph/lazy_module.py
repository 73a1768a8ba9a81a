"""Defines LazyModule, a GraphModule that generates its Python code when it is first run or read.

Compiler passes only read nodes: of ten modules created in a compile hardly any runs as Python, and
generating the code costs 0.2 ms plus 30 us a node. A module that leaves the package is passed
through `with_code` first, so that it looks like any other GraphModule.
"""

from __future__ import annotations

import math
import types
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from ..compat.operators import qualified_name
from ..torch_types import AnyFunction

__all__ = ["LazyModule", "call_by_identity", "with_code"]

# Names in the repr() of a complex number; fx knows those of a float.
_PARTS = {"nanj": complex(0.0, math.nan), "infj": complex(0.0, math.inf)}


class LazyModule(GraphModule):
    """Postpones the code generation of `recompile` to the next call or look at the code."""

    _written = False

    def recompile(self) -> Any:
        self._written = False
        type(self).forward = _write_then_run
        return None

    def write(self) -> None:
        """Generate `forward` from the graph if it is out of date."""
        if not self._written:
            super().recompile()
            type(self).forward.__globals__.update(_PARTS)
            self._written = True

    @property
    def code(self) -> str:
        self.write()
        code: str = self._code
        return code

    def __str__(self) -> str:
        self.write()
        return super().__str__()

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def __reduce_package__(self, exporter: Any) -> Any:
        return _plain(self).__reduce_package__(exporter)


def with_code(gm: GraphModule) -> GraphModule:
    """Return the module with its code generated: `gm.forward` is then the function that fx
    writes.
    """
    if isinstance(gm, LazyModule):
        gm.write()
    return gm


def _write_then_run(self: LazyModule, *args: object) -> object:
    self.write()
    return self.forward(*args)


def _plain(gm: LazyModule) -> GraphModule:
    """Return an ordinary GraphModule for pickling, which stores the code."""
    return GraphModule(gm, gm.graph, type(gm).__name__)


def call_by_identity(graph: Graph) -> None:
    """Wrap torch functions that are not found under their qualified names.

    fx writes `torch.nn.functional.silu(x)` for a call of silu. Where the program has patched that
    attribute, the code would call the replacement instead of the function in the graph.
    """
    for node in graph.nodes:
        target = node.target
        of_python = isinstance(target, types.FunctionType | types.BuiltinFunctionType)
        if of_python and node.op == "call_function" and not _is_found(target):
            node.target = _under_another_name(target)


def _is_found(function: AnyFunction) -> bool:
    """Return whether fx's name for a function resolves to it; fx needs no name outside torch."""
    if not (function.__module__ or "torch").startswith("torch"):
        return True
    try:
        path = qualified_name(function).split(".")
    except RuntimeError:  # raised by fx if no module has the function
        return False
    if path[0] != "torch":
        return True
    found: object = torch
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is function


def _under_another_name(function: AnyFunction) -> AnyFunction:
    def original(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    original.__name__ = f"original_{function.__name__}"
    return original
