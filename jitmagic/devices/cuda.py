"""Describes NVIDIA GPUs, whose kernels are Triton's. Triton is looked up without importing it."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch.nn.attention import SDPBackend

from .device import AttentionFacts, Device, Target, TargetOptions, add
from .processors import chosen_gpu

__all__ = ["CUDA_ROW"]


def _target(device: torch.device, options: TargetOptions) -> Target:
    if (chosen := chosen_gpu()) is not None:
        why, name = f"the file is for {chosen.name}", chosen.name
        numbers = 1, 0, chosen.l2_bytes, "", chosen.multiprocessors
        return Target("cuda", "triton", why, name, *numbers, processor=name)
    facts = torch.cuda.get_device_properties(device)
    has_triton = find_spec("triton") is not None
    tier, why = ("triton", "triton is installed") if has_triton else ("aten", "no triton")
    isa = f"sm_{facts.major}{facts.minor}"
    l2 = int(getattr(facts, "L2_cache_size", 32 << 20))
    held = int(facts.max_threads_per_multi_processor)
    count = int(facts.multi_processor_count)
    return Target("cuda", tier, why, isa, 1, 0, l2, "", count, resident_threads=held)


def _current_index() -> int:
    return torch.cuda.current_device() if chosen_gpu() is None else 0


def _attention(facts: AttentionFacts) -> tuple[SDPBackend, ...]:
    """Choose kernels by their times on an H200, forward and backward, 8 x 16 x 2048 x 64, bfloat16.

    Written out, 9.7 ms in eager and 3.9 in jitmagic's kernels. Causal: cuDNN 0.78, flash 1.2,
    memory-efficient 2.6. With a mask: cuDNN 2.0, memory-efficient 5.2. Only the memory-efficient
    kernel differentiates a bias: 6.0 ms. In float32 it needs 7.0 ms for 4 x 16, jitmagic's kernels
    6.5. Lengths from 32 on gain, by fewer launches. cuDNN plans each size anew.
    """
    if facts.dtype not in (torch.float16, torch.bfloat16) or chosen_gpu() is not None:
        return ()
    major, _ = torch.cuda.get_device_capability(facts.device)
    cudnn = (SDPBackend.CUDNN_ATTENTION,) if major in (9, 10) and not facts.varies else ()
    return cudnn if facts.mask == "tensor" else (*cudnn, SDPBackend.FLASH_ATTENTION)


def _generates_attention(facts: AttentionFacts) -> bool:
    """Return whether generated kernels use tensor cores without rounding operands."""
    return facts.dtype in (torch.float16, torch.bfloat16)


CUDA_ROW = add(
    Device(
        type="cuda",
        target=_target,
        current_index=_current_index,
        kernels="cuda",
        # Saving costs traffic, recomputing costs arithmetic: most of that hides behind memory.
        costly=4,
        rereads=True,
        caches_memory=True,
        has_tensor_cores=True,
        turns_images=True,
        has_atomics=True,
        runs_cuda=True,
        traces_autocast=True,
        attention=_attention,
        generates_attention=_generates_attention,
    )
)
