"""Holds everything that depends on the operating system or the processor architecture.

In: `sys.platform` and the machine's name, read at each call. Out: compiler flags, facts of the
processor, and whether libraries are ELF files. Linux (glibc or musl) on x86-64 and aarch64 is
tested. macOS is written from its documentation (Apple's clang, Mach-O libraries, sysctl) and is
untested. Elsewhere the answers are those of a plain POSIX system.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from functools import lru_cache

__all__ = [
    "LINUX_PROCESSOR",
    "architecture",
    "build_advice",
    "builds_native",
    "compiler_names",
    "instruction_sets",
    "is_arm",
    "is_clang",
    "l2_bytes",
    "library_flags",
    "loads_elf",
    "machine",
    "native_flags",
    "processor_features",
    "usable_processors",
]

LINUX_PROCESSOR = "/proc/cpuinfo"
# Other flags are about the machine: its caches, power, virtualisation.
_IS_INSTRUCTIONS = re.compile(
    r"sse|ssse|avx|amx|fma|f16c|bmi|adx|v?aes|v?pclmul|sha|gfni|movbe|popcnt|abm|"
    r"fp(hp)?$|asimd|sve|sme(?!p)|i8mm|bf16|atomics|crc32|pmull|dotprod"
)
_L2_SIZE = "/sys/devices/system/cpu/cpu0/cache/index2/size"


def _is_mac() -> bool:
    return sys.platform == "darwin"


def loads_elf() -> bool:
    """Return whether libraries are ELF files, and a handle of dlopen is a link map of <link.h>."""
    return sys.platform.startswith("linux")


def builds_native() -> bool:
    """Return whether the native extensions are known to build here. If not, a copy of the package
    without them runs everything as eager; if so, it is a broken installation.
    """
    return loads_elf()


def build_advice() -> str:
    """Return the sentence about building the native extensions on this system."""
    if _is_mac():
        return "on macOS this is untested; it needs Xcode's compiler (xcode-select --install)"
    return "it is known to build on Linux only"


def machine() -> str:
    """Return the architecture of the processor by Linux's name: x86_64, aarch64, ..."""
    return architecture(os.uname().machine)


def architecture(name: str) -> str:
    """Return Linux's name of an architecture that another system or a compiler names."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name.lower(), name)


def is_arm() -> bool:
    """Return whether the processor is a 64-bit ARM, which has NEON."""
    return machine() == "aarch64"


def compiler_names() -> tuple[str, ...]:
    """Return the C++ compilers to look for, in order. On macOS `g++` is a name of clang."""
    return ("clang++", "c++") if _is_mac() else ("g++", "clang++", "c++")


@lru_cache(maxsize=8)
def is_clang(cxx: str) -> bool:
    """Return whether a compiler is clang, by the name of its file: it is not run."""
    return _is_mac() or "clang" in os.path.basename(os.path.realpath(shutil.which(cxx) or cxx))


def native_flags(isa: str = "") -> tuple[str, ...]:
    """Return the flags for this machine's instructions: -march has another meaning on ARM.

    Registers are no wider than those of `isa`: ATen uses AVX2 on machines that have AVX-512 where
    ATEN_CPU_CAPABILITY says so, and the objects of the installation fit one width.
    """
    narrow = ("-mno-avx512f",) if isa == "avx2" else ()
    return ("-mcpu=native" if is_arm() else "-march=native", *narrow)


def library_flags() -> tuple[str, ...]:
    """Return the flags that make a library. Its OpenMP symbols resolve to the runtime that torch
    has loaded; on Linux they may stay undefined at link time, macOS needs permission.
    """
    return ("-dynamiclib", "-undefined", "dynamic_lookup") if _is_mac() else ("-shared",)


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_features() -> list[str]:
    """Return what the compiler's choice of native instructions depends on, in a stable order."""
    if _is_mac():
        return [" ".join(os.uname()), _sysctl("machdep.cpu.brand_string").decode(errors="replace")]
    try:
        with open(LINUX_PROCESSOR) as file:
            facts = ("flags", "model name", "Features", "CPU implementer", "CPU part")
            return sorted({line for line in file if line.startswith(facts)})
    except OSError:
        return [" ".join(os.uname())]


def instruction_sets() -> tuple[str, ...]:
    """Return the extensions of the instruction set that the compiler may use here, by Linux's
    names; () if the system does not say.
    """
    lines = [line for line in processor_features() if line.startswith(("flags", "Features"))]
    names = {name for line in lines[:1] for name in line.partition(":")[2].split()}
    return tuple(sorted(name for name in names if _IS_INSTRUCTIONS.match(name)))


def l2_bytes(default: int) -> int:
    """Return the size of one core's L2 cache in bytes, `default` if the system does not say."""
    if _is_mac():
        # Apple's processors have several kinds of cores; 0 are the fast ones.
        for name in ("hw.perflevel0.l2cachesize", "hw.l2cachesize"):
            if size := int.from_bytes(_sysctl(name), sys.byteorder):
                return size
        return default
    try:
        with open(_L2_SIZE) as file:
            text = file.read().strip()
    except OSError:
        return default
    return int(text[:-1]) * 1024 if text.endswith("K") else default


def _sysctl(name: str) -> bytes:
    """Return a value of sysctlbyname(3), empty if there is none."""
    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return b""
    failed = call(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else value.raw[: size.value]
