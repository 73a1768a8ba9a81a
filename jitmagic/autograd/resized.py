"""Resizing to Sizes: `interpolate` by the operators beneath it.

In: a torch function as the graph names it. Out: the same, for SymInts. Torch's C++ finds the size
that `interpolate` asks for in ints; its Python, which finds it in SymInts, computes the values in
Python too, with other weights than the kernel's (-inf becomes nan). The kernel takes SymInts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverloadPacket

__all__ = ["for_sizes"]


def for_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function` while a graph is recorded for all sizes."""
    if function is F.interpolate and isinstance(function, FunctionType):
        names = {**F.__dict__, "torch": _Overlay(torch, _C=_Overlay(torch._C, _nn=_Resizing()))}
        return FunctionType(function.__code__, names, "interpolate", function.__defaults__)
    name = getattr(function, "__name__", "")
    return getattr(_Resizing(), name) if function is getattr(torch._C._nn, name, None) else function


class _Overlay:
    """A namespace of which some names are others."""

    def __init__(self, base: Any, **names: Any) -> None:
        self._base = base
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


class _Resizing:
    """torch._C._nn, where what resizes is a call of the operator that takes a size."""

    def __getattr__(self, name: str) -> Any:
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, OpOverloadPacket) and "vec" in packet.overloads():
            return partial(_resized, packet.default)
        return getattr(torch._C._nn, name)


def _resized(operator: Any, x: torch.Tensor, size: Any, *rest: Any) -> torch.Tensor:
    *flags, scales = rest
    if size is None:
        size = [_scaled(n, scale) for n, scale in zip(x.shape[2:], scales, strict=True)]
    made: torch.Tensor = operator(x, size, *flags, *(scales or [None] * len(size)))
    return made


def _scaled(extent: int, scale: float) -> Any:
    return extent * int(scale) if scale == int(scale) else torch.sym_int(extent * scale)
