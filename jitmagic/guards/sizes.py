"""Checks SizesRelate guards in Python: the reference implementation of the native check.

Input: a guard and a frame's snapshot. Output: a sentence on why it fails, or None. Agrees with
`Relation` of extensions/frame/guards_tensor.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..symbols.context import is_true_of
from ..symbols.expr import Expr
from ..symbols.interval import INT64
from ..symbols.polynomial import written
from ..symbols.size import OffsetOf, SizeOf
from ..symbols.symbolic_numbers import Symbol
from .guard import SizesRelate
from .read import UNREADABLE, read_source
from .source import Source, describe

__all__ = ["relation", "size_name", "sizes_differ"]


def sizes_differ(guard: SizesRelate, frame: FrameSnapshot) -> str | None:
    known: dict[Expr, object] = {}
    for symbol in guard.symbols:
        try:
            known[symbol] = _value(symbol.origin, frame)
        except UNREADABLE:
            return f"{size_name(symbol)} no longer exists"
    if is_true_of(guard.op, guard.left, guard.right, dict(known)):
        return None
    now = ", ".join(f"{size_name(symbol)} is {known[symbol]}" for symbol in guard.symbols)
    return f"{now}, must satisfy {relation(guard)}"


def _value(origin: Any, frame: FrameSnapshot) -> int:
    if isinstance(origin, Source):
        value = read_source(origin, frame)
        if type(value) is not int or not INT64.has(value):
            raise TypeError("not a 64-bit int")
        return value
    tensor = _strided(read_source(origin.source, frame))
    if isinstance(origin, OffsetOf):
        return int(tensor.storage_offset())
    number = (tensor.shape if isinstance(origin, SizeOf) else tensor.stride())[origin.dim]
    if type(number) is not int:
        raise TypeError("a symbolic size")
    return number


def _strided(value: Any) -> torch.Tensor:
    """Return `value` if it is a strided tensor; else raise TypeError."""
    if not issubclass(type(value), torch.Tensor) or value.layout is not torch.strided:
        raise TypeError("not a strided tensor")
    tensor: torch.Tensor = value
    return tensor


def relation(guard: SizesRelate) -> str:
    """Return the guard as a Python expression: `x.shape[0] >= 2`."""
    return f"{written(guard.left, size_name)} {guard.op} {written(guard.right, size_name)}"


def size_name(symbol: Symbol) -> str:
    """Return a size, stride, offset or int as the user writes it: `x.shape[0]`."""
    origin: Any = symbol.origin
    if isinstance(origin, Source):
        return describe(origin)
    tensor = describe(origin.source)
    if isinstance(origin, OffsetOf):
        return f"{tensor}.storage_offset()"
    what = "shape" if isinstance(origin, SizeOf) else "stride()"
    return f"{tensor}.{what}[{origin.dim}]"
