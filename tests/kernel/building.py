"""Compiles the drivers of this folder against the kernel headers, once per source and ISA.

In: a source beside this file and an ISA name. Out: a loaded library.
Invariant: the flags are those of the C++ renderer, with less optimisation where the ISA is not
this machine's own.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from jitmagic.runtime.toolchain import header_folder

HERE = Path(__file__).parent
FLAGS = (
    "-O3 -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c++17 -shared -fPIC "
    "-Wall -Wextra -Wno-psabi -Werror"
).split()
CXX = shutil.which("g++")


def _runs_here(isa: str) -> bool:
    """Whether this machine has the instructions: an ISA that it lacks cannot be tested on it."""
    if isa == "native" or isa == "x86-64":
        return True
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx2" in flags and "fma" in flags


ISAS = [isa for isa in ("native", "x86-64-v3", "x86-64") if _runs_here(isa)]


def compile_text(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jitmagic-kernel-tests-")


@functools.cache
def library(source: str, isa: str) -> ctypes.CDLL:
    out = Path(_folder().name) / f"{Path(source).stem}-{isa}.so"
    arch = [f"-march={isa}", f"-I{header_folder()}"]
    assert CXX is not None
    # Built as kernels are for this machine, quickly for the other instruction sets.
    extra = [] if isa == "native" else ["-O1"]
    sources = (HERE / source, header_folder() / "jitmagic" / "products.cpp")
    compile_text([CXX, *FLAGS, *extra, *arch, *map(str, sources), "-o", str(out)])
    return ctypes.CDLL(str(out))
