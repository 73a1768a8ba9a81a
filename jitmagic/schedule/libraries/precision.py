"""Reads how precisely a GPU's libraries compute, by the process's settings at scheduling time.

Only padding and layouts depend on the answer, so results stay correct if the settings change later.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

__all__ = ["on_tensor_cores"]

_HALVES = (torch.float16, torch.bfloat16)


def on_tensor_cores(dtype: torch.dtype, what: Literal["products", "convolutions"]) -> bool:
    """Return whether cuBLAS or cuDNN computes with this dtype on tensor cores."""
    # fp32_precision follows allow_tf32; reading allow_tf32 itself raises if a program has set both.
    if dtype != torch.float32:
        return dtype in _HALVES
    backends: Any = torch.backends
    library = backends.cuda.matmul if what == "products" else backends.cudnn.conv
    return bool(library.fp32_precision == "tf32")
