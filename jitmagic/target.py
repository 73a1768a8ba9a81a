"""Target: frozen facts about the machine and its tools that scheduling and code generation may see.

Comes in: options (which compiler, which tier). Goes out: one hashable record; the same facts give
the same kernels, and the record is part of every cache key. Nothing here imports triton or numba:
presence is looked up without importing.
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import torch

from .options import Options

__all__ = ["Target", "find_target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Facts of one device: `tier` is the code generator: triton | cpp | numba | aten."""

    device: str  # "cpu" or "cuda"
    tier: str
    why: str  # the sentence that explains the tier
    isa: str  # cpu: "avx512" | "avx2" | "scalar"; cuda: "sm_90"
    lanes: int  # float32 lanes of one vector register (cpu)
    threads: int  # cores that parallel loops use; 0 on cuda
    l2_bytes: int
    cxx: str = ""  # path of the C++ compiler, empty when there is none
    multiprocessors: int = 0


@lru_cache(maxsize=1)
def _cpu_isa() -> tuple[str, int]:
    capability = torch.backends.cpu.get_cpu_capability().lower()
    if "avx512" in capability:
        return "avx512", 16
    if "avx2" in capability:
        return "avx2", 8
    return "scalar", 4 if platform.machine() in ("aarch64", "arm64") else 1


@lru_cache(maxsize=8)
def _find_cxx(named: str | None) -> str:
    if named is not None:
        return (shutil.which(named) or "") if named else ""
    for candidate in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if candidate and (path := shutil.which(candidate)):
            return path
    return ""


@lru_cache(maxsize=1)
def _l2_bytes(default: int) -> int:
    """Size of one core's L2 cache as Linux tells it."""
    path = "/sys/devices/system/cpu/cpu0/cache/index2/size"
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return default
    return int(text[:-1]) * 1024 if text.endswith("K") else default


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _cpu_tier(options: Options, cxx: str) -> tuple[str, str]:
    if options.cpu_tier != "auto":
        return options.cpu_tier, f"options.cpu_tier={options.cpu_tier!r}"
    if cxx:
        return "cpp", f"C++ compiler {cxx}"
    if _has("numba"):
        return "numba", "no C++ compiler was found; numba is installed"
    return "aten", "neither a C++ compiler nor numba was found"


def find_target(device: torch.device, options: Options) -> Target:
    """Facts for `device`; cheap after the first call for the same arguments."""
    if device.type == "cuda":
        return _cuda_target(device)
    cxx = _find_cxx(options.cxx)
    tier, why = _cpu_tier(options, cxx)
    isa, lanes = _cpu_isa()
    return Target(
        "cpu",
        tier,
        why,
        isa,
        lanes,
        torch.get_num_threads(),
        _l2_bytes(1 << 20),
        cxx,
    )


def _cuda_target(device: torch.device) -> Target:
    facts = torch.cuda.get_device_properties(device)
    tier, why = ("triton", "triton is installed") if _has("triton") else ("aten", "no triton")
    isa = f"sm_{facts.major}{facts.minor}"
    l2 = int(getattr(facts, "L2_cache_size", 32 << 20))
    sms = int(facts.multi_processor_count)
    return Target("cuda", tier, why, isa, 1, 0, l2, "", sms)
