"""Measures each step of a plan inside its executable.

In: a Plan and its kernels' source. Out: an executable of the same plan that calls `lap` after each
launch and ATen call. The time between two calls of `lap` is that of one step and the allocations
before it. Kernels come from the disk cache, where the compile stored them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..codegen.plan import Call, KernelSource, Launch, Plan, PlanStep
from ..devices import Target
from ..options import Options
from .load import load
from .native import CpuEntry

__all__ = ["timed_calls", "with_laps"]

_LAP = "jitmagic_lap"
_Kernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def timed_calls(plan: Plan) -> list[Launch | Call]:
    """Return the steps after which `lap` is called, in order: the steps of the schedule without
    aliases.
    """
    return [step for step in plan.steps if isinstance(step, Launch | Call)]


def with_laps(
    plan: Plan,
    source: KernelSource | None,
    target: Target,
    options: Options,
    lap: Callable[[], object],
) -> Callable[..., tuple[object, ...]]:
    """Return the plan's executable, which calls `lap` after each of `timed_calls`."""

    def called(_: int | None) -> int:
        lap()
        return 0

    callback = _Kernel(called)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    steps: list[PlanStep] = []
    for step in plan.steps:
        steps.append(step)
        if isinstance(step, Launch | Call):
            steps.append(Launch(_LAP, ()))
    timers: Mapping[str, CpuEntry] = {_LAP: CpuEntry(address, callback)}
    plain = replace(options, cuda_graphs=False)  # a replayed graph calls no lap
    lapped = replace(plan, steps=tuple(steps), titles=())
    return load(lapped, source, target, plain, others=timers).run
