"""Turns a Schedule into a Plan and the source text of its kernels.

In: the schedule, the target, for some kernels a Config. Out: (Plan, KernelSource or None). A
renderer is a class with `language` and `render(nests, buffers, target, configs) -> KernelSource`;
RENDERERS maps each tier to its renderer. `choices` lists the variants of each kernel for tuning.

    plan              the plan as data, for one size tuple or for all of them
    build_plan        slots, memory, launches, ATen calls and frees of a schedule
    equal_kernels     merges kernels that differ only in their buffers
    loop_structure    the loops and passes of a nest, from which every renderer starts
    scoped_text       values as text in nested scopes: what the three renderers share
    cpp, cpp_kernel, cpp_passes, cpp_values, cpp_ops, cpp_text   C++, from the file to the text;
                      vector_lanes, cpp_blocks and cpp_reduce decide and write parts
    triton, triton_kernel, triton_tile, triton_values, triton_ops   Triton, likewise
    attention/, products/   kernels of flex_attention; matrix products
    scalar_loops      scalar loops in any language; numba and numba_ops have that of numba
    config            what tuning may override

Scalar operations are rows of operators/scalar.py; each renderer has one module with their lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol, cast

from ..devices import Target
from ..errors import CompileFailed
from ..extend.devices import RENDERERS as REGISTERED
from ..extend.devices import RegisteredRenderer
from ..loops.ir import Buffer, Extern, Nest
from ..schedule.result import Schedule
from ..symbols.symbolic_numbers import Symbol
from .attention import cpp as cpp_attention
from .attention import triton as triton_attention
from .attention.kernel import AttentionKernel, Kernel, attention_kernel
from .build_plan import build_plan
from .cpp import CppRenderer
from .equal_kernels import SharedKernels, distinct_kernels
from .loop_structure import nest_symbols, structure
from .numba import NumbaRenderer
from .plan import Config, KernelChoice, KernelSource, Plan, PlanTemplate, SizeVector
from .triton import TritonRenderer

__all__ = ["RENDERERS", "PlanTemplate", "Renderer", "choices", "render", "render_template"]

Configs = Mapping[str, Config]


class Renderer(Protocol):
    """Writes the kernels of one language; stateless."""

    language: str

    def render(
        self,
        nests: Sequence[Kernel],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Configs = ...,
    ) -> KernelSource:
        """Write one function per nest, named after it, with arguments in the order of
        `nest_arguments`. The heuristics decide for a nest that is not in `configs`.
        """
        ...

    def candidates(
        self, nest: Kernel, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return the configs worth measuring for one nest, without the default."""
        ...


RENDERERS: Mapping[str, type[Renderer]] = {
    "cpp": CppRenderer,
    "numba": NumbaRenderer,
    "triton": TritonRenderer,
}

# Whether a tier's renderer writes a kernel of flex_attention.
ATTENTION: Mapping[str, Callable[[AttentionKernel], bool]] = {
    "cpp": cpp_attention.is_written,
    "triton": triton_attention.is_written,
}


class _Registered:
    """Calls a renderer of `extend.register_renderer`, which has no variants to measure."""

    def __init__(self, row: RegisteredRenderer) -> None:
        self.row, self.language = row, row.name

    def render(
        self,
        nests: Sequence[Kernel],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Configs = MappingProxyType({}),
    ) -> KernelSource:
        made = self.row.call("renderer", self.row.renderer.render, nests, buffers, target, configs)
        return replace(cast(KernelSource, made), language=self.language)

    def candidates(
        self, nest: Kernel, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        return ()


def renderer_of(tier: str) -> Renderer:
    """Return the renderer of a tier. Raises CompileFailed if it has none."""
    if tier in RENDERERS:
        return RENDERERS[tier]()
    if tier in REGISTERED.rows:
        return _Registered(REGISTERED.rows[tier])
    raise CompileFailed(f"no code generator writes kernels for tier {tier!r}")


def _size_arguments(tier: str, symbols: tuple[Symbol, ...]) -> tuple[SizeVector, ...]:
    """Return the size arguments of a kernel: one int64 array, or one argument per symbol."""
    if tier == "triton":
        return tuple(SizeVector((symbol,)) for symbol in symbols)
    return (SizeVector(symbols),)


def render(
    schedule: Schedule, target: Target, configs: Configs = MappingProxyType({})
) -> tuple[Plan, KernelSource | None]:
    """Return the plan of one call, and the source of its kernels (None if it launches no
    kernel).
    """
    distinct = _distinct(schedule, target)
    return build_plan(schedule, distinct), _source(schedule, distinct, target, configs)


def render_template(
    schedule: Schedule, target: Target, symbols: tuple[Symbol, ...]
) -> tuple[PlanTemplate, KernelSource | None]:
    """Render for all sizes: the plan and the size arguments are filled in at each call."""
    program, distinct = schedule.program, _distinct(schedule, target)
    nests = [step for step in program.steps if isinstance(step, Nest)]
    taken = {nest.name: nest_symbols(nest, program.buffers) for nest in nests}
    taken |= {name: kernel.symbols for name, kernel in distinct.attention.items()}
    sizes = {name: _size_arguments(target.tier, found) for name, found in taken.items() if found}
    template = PlanTemplate(build_plan(schedule, distinct, sizes), symbols)
    return template, _source(schedule, distinct, target)


def _distinct(schedule: Schedule, target: Target) -> SharedKernels:
    """Return the kernels to write: those of nests, and of calls of flex_attention."""
    program = schedule.program
    nests = [step for step in program.steps if isinstance(step, Nest)]
    found = distinct_kernels(nests, program.buffers)
    if target.tier not in ATTENTION:
        return found
    calls = [step for step in program.steps if isinstance(step, Extern)]
    made = [attention_kernel(step, program.buffers) for step in calls]
    return found.with_attention([one for one in made if one and ATTENTION[target.tier](one)])


def _source(
    schedule: Schedule,
    distinct: SharedKernels,
    target: Target,
    configs: Configs = MappingProxyType({}),
) -> KernelSource | None:
    if not distinct.nests:
        return None
    return renderer_of(target.tier).render(
        distinct.nests, schedule.program.buffers, target, configs
    )


def choices(schedule: Schedule, target: Target) -> tuple[KernelChoice, ...]:
    """Return the distinct source texts that each kernel may have, for autotuning."""
    program, renderer = schedule.program, renderer_of(target.tier)
    made = []
    for nest in _distinct(schedule, target).nests:
        texts: dict[object, tuple[Config, KernelSource]] = {}
        for config in (Config(), *renderer.candidates(nest, program.buffers, target)):
            source = renderer.render([nest], program.buffers, target, {nest.name: config})
            # Several configs may give the same text, which is measured once.
            texts.setdefault((source.text, source.grids.get(nest.name)), (config, source))
        configs, sources = zip(*texts.values(), strict=True)
        written = len(
            nest.written
            if isinstance(nest, AttentionKernel)
            else structure(nest, program.buffers).written
        )
        made.append(KernelChoice(nest.name, configs, sources, written))
    return tuple(made)
