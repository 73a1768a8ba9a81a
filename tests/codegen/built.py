"""A small loader for the tests: schedule, render, build, run by the Python executor."""

from __future__ import annotations

import ctypes

import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource
from jitmagic.devices import Target, find_target
from jitmagic.loops.ir import LoopProgram
from jitmagic.options import Options
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.runtime.store import open_store
from jitmagic.runtime.toolchain import build_library
from jitmagic.schedule import schedule

__all__ = ["compiled", "kernels"]


def kernels(source: KernelSource | None, target: Target) -> dict:
    """Return kernel name -> callable over tensors."""
    if source is None:
        return {}
    library = build_library(source.text, target, open_store(None), source.symbols)

    def caller(name: str):
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(library.address(name))
        function.library = library  # keeps the code loaded
        return lambda tensors: function(
            (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        )

    return {name: caller(name) for name in source.symbols}


def compiled(program: LoopProgram, **options) -> PlanRunner:
    """Return the program as a callable over its inputs."""
    chosen = Options(**options)
    target = find_target(torch.device("cpu"), chosen)
    plan, source = render(schedule(program, target, chosen), target)
    return PlanRunner(plan, kernels(source, target))
