"""What a GPU's libraries round to, as the process has it set while a program is scheduled.

A choice of sizes and layouts, not of results: when the setting changes later, these stay right.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

__all__ = ["on_tensor_cores"]

_HALVES = (torch.float16, torch.bfloat16)


def on_tensor_cores(dtype: torch.dtype, what: Literal["products", "convolutions"]) -> bool:
    """Whether cuBLAS or cuDNN computes with these numbers on tensor cores. fp32_precision follows
    allow_tf32, which raises where a program has set both.
    """
    if dtype != torch.float32:
        return dtype in _HALVES
    backends: Any = torch.backends
    library = backends.cuda.matmul if what == "products" else backends.cudnn.conv
    return bool(library.fp32_precision == "tf32")
