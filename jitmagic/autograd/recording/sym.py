"""Sym: a tensor of the graph being recorded, with the arithmetic that decompositions use.

A Sym is a node with its meta tensor. Its sizes are ints, or Sizes if they are dynamic; torch's
SymInts appear only on the meta tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ...compat.operators import OpOverload, OpOverloadPacket
from ...graph.symbolic.sym_node import as_dimension, as_torch, sizes_in
from ...late import late_names
from ...protocols import Protocol
from ...spec import TensorSpec

if TYPE_CHECKING:
    from ...graph.operators.symbolic_shapes import infer_symbolic
else:
    late_names(globals(), {"graph.operators.symbolic_shapes": "infer_symbolic"})

__all__ = ["Sym", "to_meta"]

aten = torch.ops.aten


class Graphs(Protocol):
    """The interface of the recorder that Sym needs (recorder.py)."""

    def call(self, op: OpOverload, *args: object, **kwargs: object) -> Any: ...
    def copied(self, sym: Sym) -> Sym: ...
    def restride(self, sym: Sym, strides: tuple[int, ...]) -> Sym: ...


def _unary(op: OpOverload) -> Callable[[Sym], Sym]:
    return lambda sym: sym.one(op)


def _binary(op: OpOverload) -> Callable[[Sym, Sym | float], Sym]:
    return lambda sym, other: sym.one(op, other)


def _comparison(ops: OpOverloadPacket) -> Callable[[Sym, Sym | float], Sym]:
    return lambda sym, other: sym.one(ops.Tensor if isinstance(other, Sym) else ops.Scalar, other)


class Sym:
    """A tensor of the graph being recorded: its node, its meta tensor, and arithmetic on them."""

    __slots__ = ("device", "meta", "node", "recorder")

    def __init__(self, recorder: Graphs, node: Node, meta: torch.Tensor, device: torch.device):
        self.recorder, self.node, self.meta, self.device = recorder, node, meta, device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape  # that of `meta`, whose SymInts torch makes anew for each reader

    @property
    def strides(self) -> tuple[int, ...]:
        return self.spec.stride

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

    def call(self, op: OpOverload, *args: object, **kwargs: object) -> Any:
        """Record `op(self, ...)` without decomposing it."""
        return self.recorder.call(op, self, *args, **kwargs)

    def to(self, dtype: torch.dtype) -> Sym:
        if dtype is self.meta.dtype:
            return self
        return self.one(aten._to_copy.default, dtype=dtype)

    def one(self, op: OpOverload, *args: object, **kwargs: object) -> Sym:
        """Do `call` for an operation with a single tensor result."""
        result: Sym = self.recorder.call(op, self, *args, **kwargs)
        return result

    __add__ = __radd__ = _binary(aten.add.Tensor)
    __sub__ = _binary(aten.sub.Tensor)
    __mul__ = __rmul__ = _binary(aten.mul.Tensor)
    __truediv__ = _binary(aten.div.Tensor)
    __gt__, __lt__ = _comparison(aten.gt), _comparison(aten.lt)
    __ge__, __le__ = _comparison(aten.ge), _comparison(aten.le)
    equals, differs = _comparison(aten.eq), _comparison(aten.ne)
    __neg__ = _unary(aten.neg.default)
    abs, exp, log = _unary(aten.abs.default), _unary(aten.exp.default), _unary(aten.log.default)
    sqrt, rsqrt = _unary(aten.sqrt.default), _unary(aten.rsqrt.default)
    tanh, sigmoid = _unary(aten.tanh.default), _unary(aten.sigmoid.default)

    def __rsub__(self, other: float) -> Sym:
        # Promote first: an unsigned integer cannot be negated.
        return self.to(torch.result_type(self.meta, other)).one(aten.neg.default) + other

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
    is_sized = next(sizes_in((meta, shape)), None) is not None
    try:
        if is_sized:
            return infer_symbolic(aten.view.default, (meta, to_meta(shape)), {}) is not None
        meta.view(shape)
    except (RuntimeError, ValueError):  # ValueError is that of torch's Python dispatcher
        return False
    return True


def to_meta(value: object) -> Any:
    if isinstance(value, Sym):
        return value.meta
    if isinstance(value, (list, tuple)):
        return [to_meta(item) for item in value]
    return as_torch(value)
