"""What torch's libraries do with an extern call, asked of torch about tensors without data.

Comes in: a call and the buffers of its program, laid out as the call meets them. What depends on
sizes that vary is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..graph.operators.convolution import is_convolved_by_cudnn
from .ir import Buffer, BufferRef, Extern
from .sizes import has_sizes

__all__ = ["adds_bias_apart"]

_GROUPS = 8  # where aten.convolution takes them


def adds_bias_apart(step: Extern, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a convolution on a GPU adds its bias in a pass of its own, as it does around cuDNN.
    Of one group it always is cuDNN's; kernels of torch's own for several add it on their way.
    """
    if step.args[_GROUPS] == 1:
        return True
    image, weight = (_without_data(ref, buffers) for ref in step.args[:2])
    if image is None or weight is None:
        return False
    device = buffers[step.args[0].name].device
    return is_convolved_by_cudnn(device, (image, weight), step.args[3:])


def _without_data(ref: BufferRef, buffers: Mapping[str, Buffer]) -> torch.Tensor | None:
    buffer = buffers[ref.name]
    if has_sizes(buffer):
        return None
    return torch.empty_strided(buffer.shape, buffer.stride, dtype=buffer.dtype, device="meta")
