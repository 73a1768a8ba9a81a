"""Lists the processors and GPUs that `save` compiles for on another machine, and chooses one.

In: a name such as "avx2" or "sm_90". Out: its row, whose facts `find_target` uses in place of those
of this machine while `compiling_for` is entered, on the thread that entered it. For a GPU, tensors
on the CPU count as being on it: `counted_device`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch

from .. import platforms
from ..lazy_dataclass import dataclass

__all__ = [
    "GPUS",
    "PROCESSORS",
    "Gpu",
    "Processor",
    "chosen_gpu",
    "chosen_processor",
    "compiling_for",
    "counted_device",
]


@dataclass(frozen=True, slots=True)
class Processor:
    """Holds what kernels for a processor depend on.

    machine       the architecture, by `platforms.machine`
    isa, lanes    as in Target
    flags         the compiler's flags for these instructions
    instructions  their names, as Linux lists them (`platforms.instruction_sets`)
    compiler      the C++ compiler for this architecture on another one, and its Debian package
    """

    name: str
    machine: str
    isa: str
    lanes: int
    flags: tuple[str, ...]
    instructions: tuple[str, ...]
    compiler: tuple[str, str]

    def find_compiler(self, chosen: str) -> str:
        """Return the path of a compiler for the architecture: `chosen`, the one that the options
        choose here, if it is one, else the cross compiler; "" if there is none.
        """
        paths = filter(None, (chosen, shutil.which(self.compiler[0])))
        return next((path for path in paths if _machine_of(path) == self.machine), "")


@lru_cache(maxsize=8)
def _machine_of(cxx: str) -> str:
    """Return the architecture that a compiler compiles for; "" if it does not say."""
    command = [cxx, "-dumpmachine"]  # 2 ms; of GCC and clang
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return platforms.architecture(done.stdout.partition("-")[0])


_X86 = ("x86_64-linux-gnu-g++", "g++-x86-64-linux-gnu")
_ARM = ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
# The levels of the x86-64 ABI, in which compilers name these sets: 3 has AVX2, 4 has AVX-512.
_LEVEL_3 = (
    *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt"),
    *("sse", "sse2", "sse4_1", "sse4_2", "ssse3"),
)
_LEVEL_4 = (*_LEVEL_3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
PROCESSORS = {
    row.name: row
    for row in (
        Processor("avx2", "x86_64", "avx2", 8, ("-march=x86-64-v3",), _LEVEL_3, _X86),
        Processor("avx512", "x86_64", "avx512", 16, ("-march=x86-64-v4",), _LEVEL_4, _X86),
        Processor("aarch64", "aarch64", "neon", 4, ("-march=armv8-a",), ("asimd", "fp"), _ARM),
    )
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """Holds what kernels for a GPU depend on; the name is its architecture."""

    name: str
    multiprocessors: int
    l2_bytes: int


GPUS = {
    row.name: row
    for row in (
        Gpu("sm_80", 108, 40 << 20),  # A100
        Gpu("sm_90", 132, 50 << 20),  # H100, H200
        Gpu("sm_100", 148, 126 << 20),  # B200
    )
}

_chosen: ContextVar[Processor | Gpu | None] = ContextVar("jitmagic_processor", default=None)


def chosen_processor() -> Processor | None:
    """Return the processor that this thread compiles for; None: that of this machine."""
    chosen = _chosen.get()
    return chosen if isinstance(chosen, Processor) else None


def chosen_gpu() -> Gpu | None:
    """Return the GPU that this thread compiles for; None: that of this machine."""
    chosen = _chosen.get()
    return chosen if isinstance(chosen, Gpu) else None


def counted_device(device: torch.device) -> torch.device:
    """Return the device that a tensor of the program counts as being on."""
    is_moved = device.type == "cpu" and chosen_gpu() is not None
    return torch.device("cuda", 0) if is_moved else device


@contextmanager
def compiling_for(processor: Processor | Gpu | None) -> Iterator[None]:
    """Compile for a processor or a GPU inside the block, on this thread."""
    token = _chosen.set(processor)
    try:
        yield
    finally:
        _chosen.reset(token)
