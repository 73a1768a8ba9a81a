"""Describes the machine by the facts that scheduling and code generation depend on.

`find_target` turns options into one hashable record. Equal records give equal kernels, and the
record is part of every cache key. Triton and numba are looked up without importing them.
`weaker_target` returns the tier to try after one that failed.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec

import torch

from . import platforms
from .options import Options

__all__ = ["Target", "aten_vector_bytes", "distrust_compiler", "find_target", "weaker_target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the facts of one device. `tier` names the code generator: triton, cpp, numba or
    aten.
    """

    device: str  # "cpu" or "cuda"
    tier: str
    why: str  # the sentence that explains the tier
    isa: str  # cpu: "avx512" | "avx2" | "neon" | "scalar"; cuda: "sm_90"
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
    return ("neon", 4) if platforms.is_arm() else ("scalar", 1)


def aten_vector_bytes() -> int:
    """Return the size in bytes of the vector registers that ATen's CPU kernels use here."""
    isa, lanes = _cpu_isa()
    return {"avx512": 64, "avx2": 32}.get(isa, 16 if lanes > 1 else 32)


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


def _cpu_tier(options: Options, cxx: str, without: str) -> tuple[str, str]:
    if options.cpu_tier != "auto":
        return options.cpu_tier, f"options.cpu_tier={options.cpu_tier!r}"
    if cxx:
        return "cpp", f"C++ compiler {cxx}"
    if _has("numba"):
        return "numba", f"{without}; numba is installed"
    return "aten", f"{without}, and {_NO_NUMBA}"


def find_target(device: torch.device, options: Options) -> Target:
    """Return the facts of `device`; cheap after the first call for the same arguments."""
    if device.type == "cuda":
        return _cuda_target(device)
    cxx, without = _find_cxx(options.cxx)
    tier, why = _cpu_tier(options, cxx, without)
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


def weaker_target(failed: Target, options: Options) -> Target:
    """Return the fastest tier that is left after `failed` could not build a graph. If a C++
    compiler is broken (`distrust_compiler`), another one is tried before numba.
    """
    if failed.tier != "cpp":
        return replace(failed, tier="aten", why=f"{failed.tier} failed")
    other, _ = _find_cxx(options.cxx)
    if other and other != failed.cxx:
        return replace(failed, cxx=other, why=f"C++ compiler {other}")
    if _has("numba"):
        return replace(failed, tier="numba", why="numba is installed")
    return replace(failed, tier="aten", why=_NO_NUMBA)


def _cuda_target(device: torch.device) -> Target:
    facts = torch.cuda.get_device_properties(device)
    tier, why = ("triton", "triton is installed") if _has("triton") else ("aten", "no triton")
    isa = f"sm_{facts.major}{facts.minor}"
    l2 = int(getattr(facts, "L2_cache_size", 32 << 20))
    sms = int(facts.multi_processor_count)
    return Target("cuda", tier, why, isa, 1, 0, l2, "", sms)
