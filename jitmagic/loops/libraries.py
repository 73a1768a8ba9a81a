"""Predicts how torch's libraries run an extern call, by querying torch with meta tensors.

In: a call and the buffers of its program, in the layouts that the call gets. The answer is unknown
for dynamic sizes. How precisely they compute is read from the process's settings; only padding and
layouts depend on it, so results stay correct if the settings change later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from ..graph.operators.convolution import is_convolved_by_cudnn
from .ir import Buffer, BufferRef, Extern
from .sizes import has_dynamic_sizes
from .values import HALVES

__all__ = ["adds_bias_separately", "on_tensor_cores"]

_GROUPS = 8  # position of `groups` in aten.convolution


def adds_bias_separately(step: Extern, buffers: Mapping[str, Buffer]) -> bool:
    """Return whether a GPU convolution adds its bias in a separate pass, as it does around
    cuDNN.
    """
    # With one group it always is cuDNN's; torch's own grouped kernels add the bias as they go.
    if step.args[_GROUPS] == 1:
        return True
    image, weight = (_without_data(ref, buffers) for ref in step.args[:2])
    if image is None or weight is None:
        return False
    device = buffers[step.args[0].name].device
    return is_convolved_by_cudnn(device, (image, weight), step.args[3:])


def _without_data(ref: BufferRef, buffers: Mapping[str, Buffer]) -> torch.Tensor | None:
    buffer = buffers[ref.name]
    if has_dynamic_sizes(buffer):
        return None
    return torch.empty_strided(buffer.shape, buffer.stride, dtype=buffer.dtype, device="meta")


def on_tensor_cores(dtype: torch.dtype, what: Literal["products", "convolutions"]) -> bool:
    """Return whether cuBLAS or cuDNN computes with this dtype on tensor cores."""
    # fp32_precision follows allow_tf32; reading allow_tf32 itself raises if a program has set both.
    if dtype != torch.float32:
        return dtype in HALVES
    backends: Any = torch.backends
    library = backends.cuda.matmul if what == "products" else backends.cudnn.conv
    return bool(library.fp32_precision == "tf32")
