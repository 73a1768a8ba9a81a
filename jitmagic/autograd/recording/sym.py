"""Sym: a tensor of the graph being recorded, with the arithmetic that decompositions use.

A Sym is a node with its meta tensor. Its sizes are ints, or Sizes if they are dynamic; torch's
SymInts appear only on the meta tensors.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.fx import Node

from ...graph.operators.symbolic_shapes import infer_symbolic
from ...graph.symbolic.sym_node import as_dimension, as_dimensions, as_torch, sizes_in
from ...spec import TensorSpec

__all__ = ["Sym", "to_meta"]

aten = torch.ops.aten


class Graphs(Protocol):
    """The interface of the recorder that Sym needs (recorder.py)."""

    def call(self, op: Any, *args: object, **kwargs: Any) -> Any: ...
    def copied(self, sym: Sym) -> Sym: ...
    def restride(self, sym: Sym, strides: tuple[int, ...]) -> Sym: ...


class Sym:
    """A tensor of the graph being recorded: its node, its meta tensor, and arithmetic on them."""

    __slots__ = ("device", "meta", "node", "recorder")

    def __init__(self, recorder: Graphs, node: Node, meta: torch.Tensor, device: torch.device):
        self.recorder, self.node, self.meta, self.device = recorder, node, meta, device

    @property
    def shape(self) -> tuple[int, ...]:
        return as_dimensions(self.meta.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return as_dimensions(self.meta.stride())

    @property
    def numel(self) -> int:
        count: int = as_dimension(self.meta.numel())
        return count

    @property
    def dtype(self) -> torch.dtype:
        return self.meta.dtype

    @property
    def spec(self) -> TensorSpec:
        spec: TensorSpec = self.node.meta["spec"]
        return spec

    def call(self, op: Any, *args: object, **kwargs: Any) -> Any:
        """Record `op(self, ...)` without decomposing it."""
        return self.recorder.call(op, self, *args, **kwargs)

    def to(self, dtype: torch.dtype) -> Sym:
        if dtype is self.meta.dtype:
            return self
        return self.one(aten._to_copy.default, dtype=dtype)

    def one(self, op: Any, *args: object, **kwargs: Any) -> Sym:
        """Do `call` for an operation with a single tensor result."""
        result: Sym = self.recorder.call(op, self, *args, **kwargs)
        return result

    def __add__(self, other: Sym | float) -> Sym:
        return self.one(aten.add.Tensor, other)

    def __sub__(self, other: Sym | float) -> Sym:
        return self.one(aten.sub.Tensor, other)

    def __mul__(self, other: Sym | float) -> Sym:
        return self.one(aten.mul.Tensor, other)

    def __truediv__(self, other: Sym | float) -> Sym:
        return self.one(aten.div.Tensor, other)

    def __radd__(self, other: float) -> Sym:
        return self.one(aten.add.Tensor, other)

    def __rmul__(self, other: float) -> Sym:
        return self.one(aten.mul.Tensor, other)

    def __rsub__(self, other: float) -> Sym:
        # Promote first: an unsigned integer cannot be negated.
        return self.to(torch.result_type(self.meta, other)).one(aten.neg.default) + other

    def __neg__(self) -> Sym:
        return self.one(aten.neg.default)

    def __gt__(self, other: Sym | float) -> Sym:
        return self._compare("gt", other)

    def __lt__(self, other: Sym | float) -> Sym:
        return self._compare("lt", other)

    def __ge__(self, other: Sym | float) -> Sym:
        return self._compare("ge", other)

    def __le__(self, other: Sym | float) -> Sym:
        return self._compare("le", other)

    def equals(self, other: Sym | float) -> Sym:
        return self._compare("eq", other)

    def differs(self, other: Sym | float) -> Sym:
        return self._compare("ne", other)

    def _compare(self, name: str, other: Sym | float) -> Sym:
        packet = getattr(aten, name)
        return self.one(packet.Tensor if isinstance(other, Sym) else packet.Scalar, other)

    def both(self, other: Sym) -> Sym:
        return self.one(aten.logical_and.default, other)

    def either(self, other: Sym) -> Sym:
        return self.one(aten.logical_or.default, other)

    def sum(self, dims: list[int], keepdim: bool = False, dtype: torch.dtype | None = None) -> Sym:
        return self.one(aten.sum.dim_IntList, dims, keepdim, **_in_dtype(dtype))

    def mean(self, dims: list[int], keepdim: bool = False, dtype: torch.dtype | None = None) -> Sym:
        return self.one(aten.mean.dim, dims, keepdim, **_in_dtype(dtype))

    def amax(self, dims: list[int], keepdim: bool = False) -> Sym:
        return self.one(aten.amax.default, dims, keepdim)

    def exp(self) -> Sym:
        return self.one(aten.exp.default)

    def log(self) -> Sym:
        return self.one(aten.log.default)

    def abs(self) -> Sym:
        return self.one(aten.abs.default)

    def sqrt(self) -> Sym:
        return self.one(aten.sqrt.default)

    def rsqrt(self) -> Sym:
        return self.one(aten.rsqrt.default)

    def tanh(self) -> Sym:
        return self.one(aten.tanh.default)

    def sigmoid(self) -> Sym:
        return self.one(aten.sigmoid.default)

    def view(self, *shape: int) -> Sym:
        """Reshape; copies if the strides do not allow a view."""
        if shape == self.shape:
            return self
        # `is_contiguous` first: it is a cached flag, while trying the view runs torch's stride
        # rule.
        if self.meta.is_contiguous() or _viewable(self.meta, shape):
            return self.one(aten.view.default, list(shape))
        # As reshape does; aten.view itself would raise, and the copy fuses with its producer.
        return self.one(aten.clone.default, memory_format=torch.contiguous_format).one(
            aten.view.default, list(shape)
        )

    def expand(self, *shape: int) -> Sym:
        return self if shape == self.shape else self.one(aten.expand.default, list(shape))

    def unsqueeze(self, dim: int) -> Sym:
        return self.one(aten.unsqueeze.default, dim)

    def squeeze(self, dim: int) -> Sym:
        return self.one(aten.squeeze.dim, dim)

    def permute(self, *dims: int) -> Sym:
        return self.one(aten.permute.default, list(dims))


def _in_dtype(dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    return {} if dtype is None else {"dtype": dtype}


def _viewable(meta: torch.Tensor, shape: tuple[int, ...]) -> bool:
    if next(sizes_in((meta, shape)), None) is not None:
        return infer_symbolic(aten.view.default, (meta, to_meta(shape)), {}) is not None
    try:
        meta.view(shape)
    except RuntimeError:
        return False
    return True


def to_meta(value: object) -> Any:
    if isinstance(value, Sym):
        return value.meta
    if isinstance(value, (list, tuple)):
        return [to_meta(item) for item in value]
    return as_torch(value)
