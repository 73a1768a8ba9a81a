"""Compiles the drivers of this folder against the kernel headers, once per source and ISA.

In: a source beside this file and an ISA name. Out: a loaded library. Those of matrix products are
linked with their tiles, as kernels are. What was built lies in the kernel cache, where the other
files and processes of a run find it.
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

from jitmagic.runtime import toolchain
from jitmagic.runtime.store import content_key, open_store

HERE = Path(__file__).parent
FLAGS = (
    "-O3 -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c++17 -fPIC "
    "-Wall -Wextra -Wno-psabi -Werror"
).split()
CXX = shutil.which("g++")


def cpu_flags() -> str:
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.exists() else ""


def _runs_here(isa: str) -> bool:
    """Return whether this machine has the instructions of an ISA, which tests need."""
    if isa == "native" or isa == "x86-64":
        return True
    return "avx2" in cpu_flags() and "fma" in cpu_flags()


ISAS = [isa for isa in ("native", "x86-64-v3", "x86-64") if _runs_here(isa)]


def compile_text(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jitmagic-kernel-tests-")


@functools.cache
def _object(source: Path, isa: str) -> Path:
    # Built as kernels are for this machine, quickly for the other instruction sets.
    extra = [f"-march={isa}", *([] if isa == "native" else ["-O1"])]
    command = [str(CXX), *FLAGS, *extra, f"-I{toolchain.header_folder()}", "-c", str(source)]
    facts = (toolchain._headers_key(), toolchain._compiler_key(str(CXX)), toolchain._machine_key())
    store, key = open_store(None), content_key(source.read_bytes(), *command, *facts)
    out = Path(_folder().name) / f"{source.stem}-{isa}.o"
    if (data := store.get(key, ".o")) is not None:
        out.write_bytes(data)
    else:
        compile_text([*command, "-o", str(out)])
        store.put(key, ".o", out.read_bytes())
    return out


@functools.cache
def library(source: str, isa: str) -> ctypes.CDLL:
    text = (HERE / source).read_text()
    linked = [toolchain.header_folder() / name for name in toolchain.linked_with(text)]
    objects = [str(_object(path, isa)) for path in (HERE / source, *linked)]
    out = Path(_folder().name) / f"{Path(source).stem}-{isa}.so"
    compile_text([str(CXX), "-shared", "-fopenmp", *objects, "-o", str(out)])
    return ctypes.CDLL(str(out))
