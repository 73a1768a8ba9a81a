"""A tiny loader for the tests: schedule, render, compile with g++, run by the Python executor."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource
from jitmagic.loops.ir import LoopProgram
from jitmagic.options import Options
from jitmagic.runtime.execute import PlanRunner
from jitmagic.runtime.toolchain import flags, header_folder
from jitmagic.schedule import schedule
from jitmagic.target import find_target

__all__ = ["build", "compiled", "kernels"]


@lru_cache(maxsize=1)
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="jitmagic-tests-"))


def build(text: str) -> ctypes.CDLL:
    """Compile one translation unit."""
    base = folder() / hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = base.with_suffix(".cpp"), base.with_suffix(".so")
    if not library.exists():
        source.write_text(text)
        command = ["g++", *flags(text), "-march=native", f"-I{header_folder()}", str(source)]
        done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000] + text
    return ctypes.CDLL(str(library))


def kernels(source: KernelSource | None) -> dict:
    """Kernel name -> callable over tensors."""
    if source is None:
        return {}
    library = build(source.text)

    def caller(name: str):
        function = getattr(library, name)
        return lambda tensors: function(
            (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        )

    return {name: caller(name) for name in source.symbols}


def compiled(program: LoopProgram, **options) -> PlanRunner:
    """The program as a callable over its inputs."""
    chosen = Options(**options)
    target = find_target(torch.device("cpu"), chosen)
    plan, source = render(schedule(program, target, chosen), target)
    return PlanRunner(plan, kernels(source))
