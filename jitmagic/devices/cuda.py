"""Describes NVIDIA GPUs, whose kernels are Triton's. Triton is looked up without importing it."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from .device import Device, Target, TargetOptions, add
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
    return Target("cuda", tier, why, isa, 1, 0, l2, "", int(facts.multi_processor_count))


def _current_index() -> int:
    return torch.cuda.current_device() if chosen_gpu() is None else 0


CUDA_ROW = add(
    Device(
        type="cuda",
        target=_target,
        current_index=_current_index,
        kernels="cuda",
        # Saving costs traffic, recomputing costs arithmetic: most of that hides behind memory.
        costly=4,
        caches_memory=True,
        has_tensor_cores=True,
        has_atomics=True,
        runs_cuda=True,
        traces_autocast=True,
    )
)
