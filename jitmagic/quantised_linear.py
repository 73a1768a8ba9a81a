"""Quantises the weights of linear layers to 8 bits, as plain modules that any tool understands.

In: a module. Out: the same module, whose nn.Linear layers are QuantisedLinear: an 8-bit `weight`, a
float32 `scale` per row or per group of a row, and the formula `linear(x, weight * scale)`. Nothing
here compiles: compiled code recognises the formula (schedule/dequantised_products.py), and eager
runs it as it is. A layer keeps its identity, hooks and bias; state_dict has one more key.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import UsageError

__all__ = ["QuantisedLinear", "quantize_weights"]

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # as they are scaled to


class QuantisedLinear(nn.Module):
    """Applies a linear layer whose weight is 8-bit numbers times a scale per row or per group."""

    in_features: int
    out_features: int
    weight: Tensor  # (out_features, in_features), int8 or float8_e4m3fn
    scale: Tensor  # (out_features, in_features // group), float32
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result, in the dtype of x."""
        rows, groups = self.scale.shape
        parts = self.weight.view(rows, groups, -1).to(self.scale.dtype) * self.scale.unsqueeze(-1)
        return F.linear(x, parts.view(rows, -1).to(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """Return the sizes for the module's repr."""
        group = self.in_features // self.scale.shape[1]
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self.weight.dtype}, group={group}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Load this layer, quantising the weight of a checkpoint of the original model."""
        given = state_dict.get(f"{prefix}weight")
        if isinstance(given, Tensor) and f"{prefix}scale" not in state_dict:
            group = self.in_features // self.scale.shape[1]
            weight, scale = _quantised(given, self.weight.dtype, group)
            state_dict = {**state_dict, f"{prefix}weight": weight, f"{prefix}scale": scale}
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def quantize_weights(
    module: nn.Module, dtype: torch.dtype = torch.int8, group: int | None = None
) -> nn.Module:
    """Quantise the weights of all nn.Linear layers of a module, in place, and return it.

    `dtype`: torch.int8 or torch.float8_e4m3fn. `group`: neighbouring elements of a row that share a
    scale (None: all of them). Weights are rounded to the nearest number of a symmetric range, and
    lose their gradients. Raises UsageError, and changes nothing, for another dtype, for a group
    that does not divide a layer's inputs, for weights that are not finite.
    """
    if dtype not in _LARGEST:
        raise UsageError.unknown("quantised dtype", dtype, map(str, _LARGEST))
    if group is not None and (type(group) is not int or group < 1):
        raise UsageError(f"group={group!r}: pass a positive number of elements, or None")
    layers = {name: part for name, part in module.named_modules() if type(part) is nn.Linear}
    for name, layer in layers.items():
        where = f"the weight of {name or type(module).__name__}"
        if group is not None and layer.in_features % group:
            raise UsageError(
                f"{where} has rows of {layer.in_features}, which groups of {group} do not divide; "
                "pass a divisor, or None for a scale per row"
            )
        if not bool(torch.isfinite(layer.weight).all()):
            raise UsageError(f"{where} has infinite or NaN elements; repair it before quantising")
    for layer in layers.values():
        weight, scale = _quantised(layer.weight.detach(), dtype, group or layer.in_features)
        del layer.weight
        layer.register_buffer("weight", weight)
        layer.register_buffer("scale", scale)
        layer.__class__ = QuantisedLinear  # type: ignore[assignment]
    return module


def _quantised(weight: Tensor, dtype: torch.dtype, group: int) -> tuple[Tensor, Tensor]:
    """Return 8-bit numbers and the scales of their groups."""
    parts = weight.float().unflatten(1, (-1, group))
    largest = parts.abs().amax(-1)
    # A row of zeros has any scale.
    scale = torch.where(largest > 0, largest / _LARGEST[dtype], torch.ones_like(largest))
    scaled = parts / scale.unsqueeze(-1)
    whole = scaled if dtype.is_floating_point else scaled.round()
    return whole.flatten(1).to(dtype), scale
