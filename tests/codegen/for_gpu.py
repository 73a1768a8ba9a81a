"""Plans for a GPU, made on machines without one, and run on the CPU by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from jitmagic.codegen import render
from jitmagic.codegen.plan import Call, KernelSource, Plan
from jitmagic.devices import Target
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record

H200 = Target(
    "cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132, resident_threads=2048
)
CPU = torch.device("cpu")


def compiled(program: Any, *inputs: Tensor) -> tuple[Plan, KernelSource]:
    """Compile for inputs of which all but the 0-dim ones count as being on a GPU."""
    with FakeTensorMode():
        given = [
            torch.empty_strided(
                t.shape, t.stride(), dtype=t.dtype, device="cuda" if t.dim() else "cpu"
            )
            for t in inputs
        ]
        graph, _ = record(program, *given)
    loops = lower(graph, program.__name__)
    verify(loops)
    plan, source = render(schedule(loops, H200, Options()), H200)
    assert source is not None
    return plan, source


def on_cpu(plan: Plan) -> Plan:
    """Return the same plan, for the interpreter."""

    def moved(step: Any) -> Any:
        if isinstance(step, Call):
            layouts = tuple(layout and replace(layout, device=CPU) for layout in step.layouts)
            return replace(step, layouts=layouts)
        return replace(step, device=CPU) if hasattr(step, "device") else step

    return replace(plan, steps=tuple(map(moved, plan.steps)), device=CPU)
