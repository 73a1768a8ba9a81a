"""Defines the few decompositions of an exported graph.

In: ATen operations below autograd. Out: `TABLE`, as for a compile, but without the formulas that
exist for fusion: an exported graph holds ATen operations whole, and other tools decompose them as
they need. An operation is replaced where it belongs to one device or one library (a fused attention
kernel of the CPU, oneDNN's LSTM layer), or writes to an argument that its schema does not name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..autograd.decompose import TABLE as OF_COMPILES
from ..autograd.recording.recorder import Decomposition, Recorder, Sym
from ..torch_types import OpOverload

__all__ = ["TABLE"]

aten = torch.ops.aten


def _batch_norm(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    mean: Sym | None,
    variance: Sym | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Sym | None]:
    """Record the functional overload, and return (result, 2 statistics, new mean and variance)."""
    if mean is None or variance is None:
        op = aten._native_batch_norm_legit.no_stats
        return [*r.call(op, x, weight, bias, training, momentum, eps), None, None]
    if not training:
        op = aten._native_batch_norm_legit_no_training.default
        return [*r.call(op, x, weight, bias, mean, variance, momentum, eps), None, None]
    op = aten._native_batch_norm_legit_functional.default
    made: list[Sym | None] = r.call(op, x, weight, bias, mean, variance, True, momentum, eps)
    return made


def _cudnn_batch_norm(r: Recorder, x: Sym, *args: object) -> list[Sym | None]:
    out, mean, deviation, *new = _batch_norm(r, x, *args)  # type: ignore[arg-type]
    reserve = r.full((0,), 0, torch.uint8, x.device)  # cuDNN's workspace for its own backward
    return [out, mean, deviation, reserve, *new]


def _fused_attention(op: OpOverload) -> Decomposition:
    """Return the rule that records a device's attention kernel as the call of the program."""
    names = [argument.name for argument in op._schema.arguments]
    results = len(op._schema.returns)

    def rule(r: Recorder, *args: object, **kwargs: object) -> list[Sym | None]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        mask = given.get("attn_mask", given.get("attn_bias"))
        made = r.call(
            aten.scaled_dot_product_attention.default,
            given["query"], given["key"], given["value"], mask,
            given.get("dropout_p", 0.0), given.get("is_causal", False), scale=given.get("scale"),
        )  # fmt: skip
        unread = r.full((0,), 0, torch.float32, made.device)  # for a backward of the kernel's own
        return [made, *[unread] * (results - 1)]

    return rule


_ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
# Creation by `full` and `arange` of all arguments is what shapes are inferred for.
_CREATION = (
    "zeros", "_efficientzerotensor", "ones", "full", "scalar_tensor", "full_like", "zeros_like",
    "ones_like", "new_full", "new_zeros", "new_ones", "arange",
)  # fmt: skip
TABLE: Mapping[OpOverload, Decomposition] = {
    **{
        op: rule
        for op, rule in OF_COMPILES.items()
        if op._opname in _CREATION or op._opname.startswith("_foreach_")
    },
    **{op: _fused_attention(op) for op in _ATTENTION},
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
}
