"""Defines the operator that draws from a GPU's random generator without a kernel.

`jitmagic::philox_state(aligned, device, increment)` returns the seed and the offset of the default
generator of a CUDA device as 0-dim int64 CPU tensors, and advances the offset by `increment`, as a
kernel of ATen does that draws (extensions/executor/draws.cpp). Kernels compute the numbers from
them (operators/draws.py). It raises while a CUDA graph is captured, and if the tensor `aligned` is
not at a multiple of 16 bytes.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph.operators.operator_library import LASTING, LIBRARY, PURE, is_registered

__all__ = ["PHILOX_STATE"]

if not is_registered("philox_state"):  # the extension defines it too, for programs without Python
    LIBRARY.define(
        "philox_state(Tensor? aligned, int device, int increment) -> (Tensor, Tensor)",
        tags=(torch.Tag.nondeterministic_seeded,),
    )
PHILOX_STATE: Any = torch.ops.jitmagic.philox_state.default
LASTING.add(PHILOX_STATE)
PURE.add(PHILOX_STATE)  # but for the draw, which its tag says
