"""Data of graphs as bytes, for a test in another process: a pickle that names what has a name."""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

import torch

from jitmagic.graph.data.names import is_function, name_of, object_at
from jitmagic.symbols.expr import Expr
from jitmagic.torch_types import OpOverload

__all__ = ["read", "written"]


def _operator(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, OpOverload):
            return _operator, (obj.namespace, obj._opname, obj._overloadname)
        if isinstance(obj, Expr):  # not by its fields: equal ones are one object
            return type(obj), tuple(getattr(obj, name) for name in type(obj).__match_args__)
        if is_function(obj) and not isinstance(obj, type | FunctionType):
            return object_at, name_of(obj)
        return NotImplemented


def written(data: object) -> bytes:
    """Return the bytes."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(data)
    return buffer.getvalue()


def read(content: bytes) -> Any:
    """Return the data."""
    return pickle.loads(content)
