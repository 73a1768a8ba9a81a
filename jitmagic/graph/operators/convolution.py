"""Shape rules of convolutions.

torch's own meta function reports row-major results where the kernels keep channels_last, and
importing what it needs takes 0.3 s. The CPU's rule (ATen/native/Convolution.cpp,
determine_backend_memory_format): channels_last if input or weight is laid out so. For other devices
torch itself is asked, with tensors without data: the layout depends on the dtype (cuDNN has no
channels_last float64), on versions and on whether cuDNN is enabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ...compat.modes import ignore_torch_function
from ...compat.tensors import memory_format_of_convolution, select_convolution
from ..dispatch_mode import dataless
from ..fresh_meta import has_elements
from ..symbolic.sym_node import has_strides_along
from .shape_rules import infers

__all__ = [
    "convolution",
    "convolution_layout",
    "is_convolved_by_cudnn",
]

aten = torch.ops.aten
META = torch.device("meta")


def _is_channels_last(x: torch.Tensor) -> bool:
    shape, stride = x.shape, x.stride()
    if x.dim() == 3:  # conv1d runs as conv2d over images of height one
        row = shape[2] * stride[2]
        shape, stride = (*shape[:2], 1, shape[2]), (*stride[:2], row, stride[2])  # type: ignore[assignment]
    return has_strides_along((1, 3, 2, 0), shape, stride)


def _format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    last = _is_channels_last(x) or _is_channels_last(weight)
    if last and x.dim() == 3:  # conv1d's kernel first makes its input contiguous
        last = _is_channels_last(weight) or x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def _empty(shape: Sequence[int], like: torch.Tensor, format: torch.memory_format) -> torch.Tensor:
    if len(shape) == 3 and format is torch.channels_last:
        return _empty((*shape[:2], 1, shape[2]), like, format).squeeze(2)
    return torch.empty(shape, dtype=like.dtype, device=META, memory_format=format)


def _spread(values: Sequence[int], count: int) -> Sequence[int]:
    return values if len(values) == count else [values[0]] * count


@infers(aten.convolution.default, by_strides=False)
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
    """Run aten.convolution on meta tensors; None (volumes, bad arguments) defers to torch."""
    dims = x.dim() - 2
    if dims not in (1, 2) or weight.dim() != x.dim() or x.dtype is not weight.dtype:
        return None
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != channels or not has_elements(x):
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
    if any(extent <= 0 for extent in extents):  # not min(): it would guard which Size is smaller
        return None
    out = weight.shape[1] * groups if transposed else weight.shape[0]
    return _empty((x.shape[0], out, *extents), x, _format(x, weight))


@infers(aten.convolution_backward.default, by_strides=False)
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
    """Run aten.convolution_backward on meta tensors; return the requested gradients."""
    if x.dim() not in (3, 4) or not has_elements(x):
        return None
    format = _format(x, weight)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return (
        _empty(x.shape, x, format) if mask[0] else None,
        _empty(weight.shape, weight, format) if mask[1] else None,
        torch.empty((channels,), dtype=x.dtype, device=META) if mask[2] else None,
    )


# The enum is named differently at run time and in torch's type stubs.
_CUDNN = frozenset({"Cudnn", "CudnnTranspose"})


class _StandIn(torch.Tensor):
    """A tensor without data that reports a shape, strides, dtype and device."""

    __torch_function__ = ignore_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: object, *rest: object) -> NoReturn:  # type: ignore[override]
        raise NotImplementedError(f"{func} of a tensor without data")


def _chosen(
    device: torch.device, tensors: Sequence[torch.Tensor], settings: Sequence[object]
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return image and weight without data, on `device`, and the library that convolves them
    there.
    """
    x, weight = (dataless(_StandIn, t, device, 0, False) for t in tensors)
    return x, weight, select_convolution(x, weight, None, *settings)


def is_convolved_by_cudnn(
    device: torch.device, tensors: Sequence[torch.Tensor], settings: Sequence[Any]
) -> bool:
    """Return whether cuDNN runs the convolution of an image and a weight, given as meta tensors in
    the layout that the kernel receives. `settings`: the arguments after the bias.
    """
    _, _, backend = _chosen(device, tensors, settings)
    return backend.name in _CUDNN


def convolution_layout(device: torch.device, args: Sequence[Any], made: Any) -> Any:
    """Return the meta results of a convolution, or of its backward, in `device`'s layout."""
    first = isinstance(made, tuple)  # the backward's first argument is the gradient
    if len(args) < first + 9 or args[first].dim() not in (4, 5):
        return made
    tensors, settings = args[first : first + 2], args[first + 3 : first + 9]
    x, weight, backend = _chosen(device, tensors, settings)
    format = memory_format_of_convolution(x, weight, backend)
    if not first:
        return _empty(made.shape, made, format)
    image, kernel, bias = made
    images = (None if t is None else _empty(t.shape, t, format) for t in (image, kernel))
    return *images, bias
