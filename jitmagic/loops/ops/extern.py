"""Adds extern calls: operations that fall back to ATen instead of becoming loops.

In: any op with its arguments. Out: an Extern step whose results own their memory. An op that
returns a view of its argument is replaced by its `_copy` variant, because the memory plan does not
track memory that ATen shares.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from ...errors import VerifyError
from ...graph.distributed.waited import is_collective, started_by, wait_for
from ...graph.operators.foreign import has_side_effects, is_foreign
from ...graph.operators.raising import call_may_raise
from ...graph.triton.launches import kernel_name
from ...spec import TensorSpec, contiguous_strides
from ...torch_types import Args, Kwargs, OpOverload
from ..builder import LoopBuilder, Out
from ..tensor_view import TensorView

__all__ = [
    "call_may_raise",
    "fallback_to_aten",
    "has_side_effects",
    "is_collective",
    "returns_view",
    "runs_unknown_code",
    "started_by",
    "wait_for",
]


def fallback_to_aten(
    builder: LoopBuilder,
    out: Out,
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    reason: str,
) -> TensorView | list[TensorView | None] | None:
    """Add one Extern step; return a single view, or a list for an op that returns several
    tensors.
    """
    copying = _without_aliasing(op)
    if copying is not op:
        out = Out(out.name, tuple(None if s is None else _row_major(s) for s in out.specs))
    results = builder.extern(out, copying, args, kwargs, reason)
    return results[0] if _returns_one_tensor(op) else results


def _row_major(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a `_copy` variant's result, which is contiguous for any strides of the
    view.
    """
    return replace(spec, stride=contiguous_strides(spec.shape), storage_offset=0)


def runs_unknown_code(op: OpOverload) -> bool:
    """Return whether it is a custom operator, which may do anything; a Triton kernel may not."""
    return is_foreign(op) and kernel_name(op) is None


@lru_cache(maxsize=1024)
def _returns_one_tensor(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


@lru_cache(maxsize=1024)
def returns_view(op: OpOverload) -> bool:
    """Return whether a result shares memory with an argument, by the schema."""
    return any(result.alias_info is not None for result in op._schema.returns)


@lru_cache(maxsize=1024)
def _without_aliasing(op: OpOverload) -> OpOverload:
    if op._schema.is_mutable:
        raise VerifyError(f"{op} mutates its arguments: the graph is not functional")
    if not returns_view(op):
        return op
    name, overload = op._schema.name.removeprefix("aten::"), op._overloadname
    packet = getattr(torch.ops.aten, f"{name}_copy", None)
    if packet is None or overload not in packet.overloads():
        raise VerifyError(f"{op} returns a view and has no _copy variant")
    copying: OpOverload = getattr(packet, overload)
    return copying
