"""Shape rules of convolutions.

torch's own meta function reports row-major results where the kernels keep channels_last, and
importing what it needs takes 0.3 s. The kernels' rule (ATen/native/Convolution.cpp,
determine_backend_memory_format): channels_last when input or weight is laid out so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["convolution", "convolution_backward"]

META = torch.device("meta")


def _is_channels_last(x: torch.Tensor) -> bool:
    """TensorImpl::is_strides_like_channels_last, 4-d; ambiguous layouts are row-major."""
    if x.dim() != 4:
        return False
    shape, strides = x.shape, x.stride()
    if strides[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        if shape[dim] == 0 or strides[dim] < least:
            return False
        if dim == 0 and least == strides[1]:
            return False
        least = strides[dim] * shape[dim] if shape[dim] > 1 else strides[dim]
    return True


def _format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    last = _is_channels_last(x) or _is_channels_last(weight)
    return torch.channels_last if last else torch.contiguous_format


def _empty(shape: Sequence[int], like: torch.Tensor, format: torch.memory_format) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=META, memory_format=format)


def _spread(values: Sequence[int], count: int) -> Sequence[int]:
    return values if len(values) == count else [values[0]] * count


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor | None:
    """aten.convolution on meta tensors; None (volumes, bad arguments): ask torch."""
    dims = x.dim() - 2
    if dims not in (1, 2) or weight.dim() != x.dim() or x.dtype is not weight.dtype:
        return None
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != channels or not x.numel():
        return None
    extents = []
    for i, (s, p, d, o) in enumerate(
        zip(*(_spread(v, dims) for v in (stride, padding, dilation, output_padding)), strict=True)
    ):
        reach = d * (weight.shape[i + 2] - 1)
        if transposed:
            extents.append((x.shape[i + 2] - 1) * s - 2 * p + reach + o + 1)
        else:
            extents.append((x.shape[i + 2] + 2 * p - reach - 1) // s + 1)
    if min(extents) <= 0:
        return None
    out = weight.shape[1] * groups if transposed else weight.shape[0]
    return _empty((x.shape[0], out, *extents), x, _format(x, weight))


def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...] | None:
    """aten.convolution_backward on meta tensors: the gradients asked for."""
    if x.dim() not in (3, 4) or not x.numel():
        return None
    format = _format(x, weight)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return (
        _empty(x.shape, x, format) if mask[0] else None,
        _empty(weight.shape, weight, format) if mask[1] else None,
        torch.empty((channels,), dtype=x.dtype, device=META) if mask[2] else None,
    )
