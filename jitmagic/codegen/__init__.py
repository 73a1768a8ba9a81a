"""From a Schedule to a Plan and the text of its kernels.

In: the schedule, the target. Out: (Plan, KernelSource or None). A renderer is a class with
`language` and `render(nests, buffers, target) -> KernelSource`; the table below says which one
serves which tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import CompileFailed
from ..loops.ir import Buffer, Nest
from ..schedule.result import Schedule
from ..target import Target
from .build_plan import build_plan
from .cpp import CppRenderer
from .distinct import distinct_kernels
from .numba import NumbaRenderer
from .plan import KernelSource, Plan
from .triton import TritonRenderer

__all__ = ["RENDERERS", "Renderer", "render"]


class Renderer(Protocol):
    """Writes the kernels of one language; stateless."""

    language: str

    def render(
        self, nests: Sequence[Nest], buffers: Mapping[str, Buffer], target: Target
    ) -> KernelSource:
        """One symbol per nest, named after it; arguments in the order of `nest_arguments`."""
        ...


RENDERERS: Mapping[str, type[Renderer]] = {
    "cpp": CppRenderer,
    "numba": NumbaRenderer,
    "triton": TritonRenderer,
}


def render(schedule: Schedule, target: Target) -> tuple[Plan, KernelSource | None]:
    """The plan of one call, and the source of its kernels (None when it launches none)."""
    program = schedule.program
    nests = [step for step in program.steps if isinstance(step, Nest)]
    chosen, kernels = distinct_kernels(nests, program.buffers)
    plan = build_plan(schedule, kernels)
    if not nests:
        return plan, None
    if target.tier not in RENDERERS:
        raise CompileFailed(f"no code generator writes kernels for tier {target.tier!r}")
    source = RENDERERS[target.tier]().render(chosen, program.buffers, target)
    return plan, source
