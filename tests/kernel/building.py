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
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from jitmagic.platforms import LINUX_PROCESSOR, is_arm, native_flags
from jitmagic.runtime import toolchain
from jitmagic.runtime.store import content_key, open_store

from .emulated import Emulated, Pointer

HERE = Path(__file__).parent
FLAGS = (
    "-O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c++17 -fPIC "
    "-Wall -Wextra -Wno-psabi -Werror"
).split()
CXX = shutil.which(os.environ.get("JITMAGIC_CXX") or "g++")


# A compiler for another processor and an emulator of it.
ARM = "aarch64"
ARM_CXX = os.environ.get("JITMAGIC_ARM_CXX", "aarch64-linux-gnu-g++").split()
ARM_EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]


def cpu_flags() -> str:
    file = Path(LINUX_PROCESSOR)
    return file.read_text() if file.exists() else ""


def _runs_here(isa: str) -> bool:
    """Return whether this machine has the instructions of an ISA, which tests need."""
    if isa == ARM:
        return not is_arm() and all(map(shutil.which, (ARM_CXX[0], ARM_EMULATOR[0])))
    if isa == "native" or isa == "x86-64":
        return True
    return "avx2" in cpu_flags() and "fma" in cpu_flags()


ISAS = [isa for isa in ("native", "x86-64-v3", "x86-64", ARM) if _runs_here(isa)]


def pointer(tensor: torch.Tensor) -> Pointer:
    """Return the argument for a tensor's first element."""
    return Pointer(tensor)


def compile_text(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jitmagic-kernel-tests-")


@functools.cache
def _object(source: Path, isa: str) -> Path:
    # Built as kernels are for this machine, quickly for the other instruction sets.
    cxx = ARM_CXX if isa == ARM else [str(CXX)]
    machine = {ARM: ["-O1"], "native": [*native_flags()]}.get(isa, [f"-march={isa}", "-O1"])
    if source.parent not in (HERE, toolchain.header_folder() / "jitmagic"):
        machine = ["-w"]  # a generated text for ARM, which does not use all that it names
    command = [*cxx, *FLAGS, *machine, f"-I{toolchain.header_folder()}", "-c", str(source)]
    path = str(shutil.which(cxx[0]))
    facts = (toolchain._headers_key(), toolchain._compiler_key(path), toolchain._native_key())
    store, key = open_store(None), content_key(source.read_bytes(), *command, *facts)
    out = Path(_folder().name) / f"{source.stem}-{isa}.o"
    if (data := store.get(key, ".o")) is not None:
        out.write_bytes(data)
    else:
        compile_text([*command, "-o", str(out)])
        store.put(key, ".o", out.read_bytes())
    return out


@functools.cache
def emulated(*sources: Path) -> Emulated:
    """Return the functions of C++ sources, compiled for another processor and run by an emulator.
    Matrix products are linked as they are with kernels.
    """
    linked = {name for path in sources for name in toolchain.linked_with(path.read_text())}
    needed = (*sources, *(toolchain.header_folder() / name for name in sorted(linked)))
    objects = [str(_object(path, ARM)) for path in (*needed, HERE / "remote.cpp")]
    out = Path(_folder().name) / f"{sources[0].stem}-{len(list(Path(_folder().name).iterdir()))}"
    compile_text([*ARM_CXX, "-rdynamic", *objects, "-lgomp", "-lm", "-ldl", "-o", str(out)])
    return Emulated([*ARM_EMULATOR, str(out)])


def emulated_library(path: Path) -> Emulated:
    """Return the kernels of a shared object of another processor, run by an emulator."""
    out, remote = Path(f"{path}.run"), str(_object(HERE / "remote.cpp", ARM))
    needs = ["-Wl,--no-as-needed", str(path), "-lgomp", "-lm", "-ldl"]
    compile_text([*ARM_CXX, remote, *needs, "-o", str(out)])
    return Emulated([*ARM_EMULATOR, str(out)])


@functools.cache
def library(source: str, isa: str) -> Any:
    """Return the functions of a source, as a ctypes library or like one."""
    if isa == ARM:
        return emulated(HERE / source)
    text = (HERE / source).read_text()
    linked = [toolchain.header_folder() / name for name in toolchain.linked_with(text)]
    objects = [str(_object(path, isa)) for path in (HERE / source, *linked)]
    out = Path(_folder().name) / f"{Path(source).stem}-{isa}.so"
    compile_text([str(CXX), "-shared", *objects, "-lgomp", "-o", str(out)])
    return ctypes.CDLL(str(out))
