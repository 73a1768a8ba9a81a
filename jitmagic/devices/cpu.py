"""Describes the CPU: its vector registers, and the compilers of the tiers that it has.

C++ is the first choice, then the block interpreter, which needs no compiler, then numba and ATen.
numba is looked up without importing it.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch.nn.attention import SDPBackend

from .. import platforms
from .device import AttentionFacts, Device, Target, TargetOptions, add
from .processors import Processor, chosen_processor

__all__ = ["CPU_ROW", "INTERPRETED", "aten_vector_bytes", "distrust_compiler"]


@lru_cache(maxsize=1)
def _cpu_isa() -> tuple[str, int]:
    capability = torch.backends.cpu.get_cpu_capability().lower()
    if "avx512" in capability:
        return "avx512", 16
    if "avx2" in capability:
        return "avx2", 8
    return ("neon", 4) if platforms.is_arm() else ("scalar", 1)


def aten_vector_bytes() -> int:
    """Return how many bytes the vector loops of ATen's CPU kernels take at a time."""
    # Two registers of AVX2, also where most kernels do not use AVX-512: of 40 float32 zeros, the
    # last 8 are computed by scalar code.
    chosen = chosen_processor()
    isa, lanes = _cpu_isa() if chosen is None else (chosen.isa, chosen.lanes)
    if isa in ("avx512", "avx2"):
        return 64
    return 16 if lanes > 1 else 32


_L2_BYTES = 1 << 20  # where it is unknown
_l2_bytes = lru_cache(maxsize=1)(platforms.l2_bytes)
_distrusted: dict[str, tuple[float, str]] = {}  # compiler -> until when, why
_DISTRUST_SECONDS = 300.0  # a full disk, or a compiler that is being installed, is temporary


def distrust_compiler(cxx: str, why: str) -> None:
    """Avoid a compiler that cannot build anything, for five minutes."""
    _distrusted[cxx] = time.monotonic() + _DISTRUST_SECONDS, why


def _is_trusted(cxx: str) -> bool:
    return cxx not in _distrusted or _distrusted[cxx][0] < time.monotonic()


@lru_cache(maxsize=8)
def _compilers(named: str | None, variable: str) -> tuple[str, ...]:
    """Return the paths of the C++ compilers to try, in order."""
    names = (variable, *platforms.compiler_names()) if named is None else (named,)
    found: dict[str, str] = {}  # c++ is usually another name of one of the others
    for path in filter(None, map(shutil.which, filter(None, names))):
        found.setdefault(os.path.realpath(path), path)
    return tuple(found.values())


def _find_cxx(named: str | None) -> tuple[str, str]:
    """Return the first compiler that is not known to be broken, or why there is none."""
    paths = _compilers(named, os.environ.get("CXX", ""))
    if trusted := [path for path in paths if _is_trusted(path)]:
        return trusted[0], ""
    if paths:
        broken = ", ".join(f"{path} ({_distrusted[path][1]})" for path in paths)
        return "", f"no C++ compiler works here: {broken}"
    return "", "no C++ compiler was found"


def _has(module: str) -> bool:
    return find_spec(module) is not None


_NO_NUMBA = "numba is not installed (python -m pip install numba)"
INTERPRETED = ("avx2", "avx512", "neon")  # instructions of the block interpreter


def _tier(options: TargetOptions, cxx: str, without: str) -> tuple[str, str]:
    if options.cpu_tier != "auto":
        return options.cpu_tier, f"options.cpu_tier={options.cpu_tier!r}"
    if cxx:
        return "cpp", f"C++ compiler {cxx}"
    if _cpu_isa()[0] in INTERPRETED:
        return "blocks", f"{without}; the block interpreter needs none"
    if _has("numba"):
        return "numba", f"{without}; numba is installed"
    return "aten", f"{without}, and {_NO_NUMBA}"


def _target(device: torch.device, options: TargetOptions) -> Target:
    cxx, without = _find_cxx(options.cxx)
    tier, why = _tier(options, cxx, without)
    threads = torch.get_num_threads()
    if (chosen := chosen_processor()) is not None:
        return _target_elsewhere(chosen, options, cxx, threads)
    isa, lanes = _cpu_isa()
    return Target("cpu", tier, why, isa, lanes, threads, _l2_bytes(_L2_BYTES), cxx)


def _target_elsewhere(
    chosen: Processor, options: TargetOptions, native: str, threads: int
) -> Target:
    """Return the target for the processor of another machine, whose cache sizes are not known."""
    tier = "aten" if options.cpu_tier == "aten" else "cpp"
    cxx = chosen.find_compiler(native)
    why = f"the file is for {chosen.name}"
    isa, lanes, name = chosen.isa, chosen.lanes, chosen.name
    return Target("cpu", tier, why, isa, lanes, threads, _L2_BYTES, cxx, processor=name)


def _weaker(failed: Target, options: TargetOptions) -> Target:
    """Return the tier after `failed`. If a C++ compiler is broken (`distrust_compiler`), another
    one is tried before those tiers whose code is for this machine alone.
    """
    if failed.tier not in ("cpp", "blocks") or failed.processor:
        return replace(failed, tier="aten", why=f"{failed.tier} failed")
    if failed.tier == "cpp":
        other, _ = _find_cxx(options.cxx)
        if other and other != failed.cxx:
            return replace(failed, cxx=other, why=f"C++ compiler {other}")
        if failed.isa in INTERPRETED:
            why = "the block interpreter needs no compiler"
            return replace(failed, tier="blocks", why=why)
    if _has("numba"):
        return replace(failed, tier="numba", why="numba is installed")
    return replace(failed, tier="aten", why=_NO_NUMBA)


def _attention(facts: AttentionFacts) -> tuple[SDPBackend, ...]:
    """Choose the flash kernel where it was faster than jitmagic's fused softmax between products.

    One thread of an AVX-512 Xeon, float32, 64 features, inference / training: 256 positions 1.17x /
    0.89x, 512 1.11x / 0.94x, 1024 1.10x / 0.95x (causal 1.51x / 1.24x), 2048 1.33x / 1.05x (causal
    2.1x / 1.7x). In bfloat16 it was never faster: 0.6x. From 1024 on, training takes it for its
    memory, which does not grow with the square of the length.
    """
    if facts.dtype not in (torch.float32, torch.float64):
        return ()
    least = 1024 if facts.trains else 256
    return (SDPBackend.FLASH_ATTENTION,) if min(facts.rows, facts.columns) >= least else ()


CPU_ROW = add(
    Device(
        type="cpu",
        target=_target,
        weaker=_weaker,
        costly=16,
        turns_images=True,
        traces_autocast=True,
        attention=_attention,
    )
)
