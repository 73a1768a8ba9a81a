"""Turns a Schedule into a Plan and the source text of its kernels.

In: the schedule, the target, for some kernels a Config. Out: (Plan, KernelSource or None). A
renderer is a class with `language` and `render(nests, buffers, target, configs) -> KernelSource`;
RENDERERS maps each tier to the module of its renderer, which is imported when a kernel of that tier
is written. `choices` lists the variants of each kernel for tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from ..devices import Target
from ..errors import CannotRender, CompileFailed
from ..extend.devices import RENDERERS as REGISTERED
from ..extend.devices import RegisteredRenderer
from ..late import late_names, load
from ..loops.ir import Buffer, Extern, Nest
from ..protocols import Protocol
from ..schedule.products import products_of
from ..schedule.result import Schedule
from ..symbols.symbolic_numbers import Symbol
from .build_plan import build_plan
from .equal_kernels import SharedKernels, distinct_kernels
from .kernel import Kernel
from .loop_structure import nest_symbols, structure
from .plan import Config, KernelChoice, KernelSource, Plan, PlanTemplate, SizeVector
from .products.blocks import programmed_products

if TYPE_CHECKING:
    from .attention.kernel import Kernel as Rendered
    from .attention.kernel import attention_kernel
    from .kernel_verifier import verify_kernel
else:
    late_names(
        globals(),
        {
            "codegen.attention.kernel": "attention_kernel",
            "codegen.kernel_verifier": "verify_kernel",
        },
    )

__all__ = [
    "RENDERERS",
    "PlanTemplate",
    "Renderer",
    "choices",
    "render",
    "render_template",
    "verify_kernels",
]

Configs = Mapping[str, Config]
IsInterpreted = Callable[[KernelSource], bool]


class Renderer(Protocol):
    """Writes the kernels of one language; stateless."""

    language: str

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Configs = ...,
    ) -> KernelSource:
        """Write one function per nest, named after it, with arguments in the order of
        `nest_arguments`. The heuristics decide for a nest that is not in `configs`.
        """
        ...

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return the configs worth measuring for one nest, without the default."""
        ...

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel | None:
        """Return the kernel that it prints; None if it prints none of the kernel language."""
        ...


RENDERERS: Mapping[str, tuple[str, str]] = {
    "cpp": ("cpp.renderer", "CppRenderer"),
    "blocks": ("blocks.renderer", "BlockRenderer"),
    "numba": ("numba.renderer", "NumbaRenderer"),
    "triton": ("triton.renderer", "TritonRenderer"),
}

# Whose `is_written` says whether a tier's renderer writes a kernel of flex_attention.
ATTENTION: Mapping[str, str] = {"cpp": "attention.cpp", "triton": "attention.triton"}


class _Registered:
    """Calls a renderer of `extend.register_renderer`, which has no variants to measure."""

    def __init__(self, row: RegisteredRenderer) -> None:
        self.row, self.language = row, row.name

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Configs = MappingProxyType({}),
    ) -> KernelSource:
        made = self.row.call("renderer", self.row.renderer.render, nests, buffers, target, configs)
        return replace(cast(KernelSource, made), language=self.language)

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        return ()

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel | None:
        return None


def renderer_of(tier: str) -> Renderer:
    """Return the renderer of a tier. Raises CompileFailed if it has none."""
    if tier in RENDERERS:
        module, name = RENDERERS[tier]
        made: Renderer = getattr(load(f"codegen.{module}"), name)()
        return made
    if tier in REGISTERED.rows:
        return _Registered(REGISTERED.rows[tier])
    raise CompileFailed(f"no code generator writes kernels for tier {tier!r}")


def _size_arguments(tier: str, symbols: tuple[Symbol, ...]) -> tuple[SizeVector, ...]:
    """Return the size arguments of a kernel: one int64 array, or one argument per symbol."""
    if tier == "triton":
        return tuple(SizeVector((symbol,)) for symbol in symbols)
    return (SizeVector(symbols),)


def render(
    schedule: Schedule,
    target: Target,
    configs: Configs = MappingProxyType({}),
    is_interpreted: IsInterpreted | None = None,
) -> tuple[Plan, KernelSource | None]:
    """Return the plan of one call, and the source of its kernels (None if it launches no
    kernel). `is_interpreted`: whether calls run interpreted programs until C++ kernels are built.
    """
    distinct = _distinct(schedule, target)
    source = _source(schedule, distinct, target, configs, is_interpreted)
    return build_plan(schedule, distinct), source


def render_template(
    schedule: Schedule,
    target: Target,
    symbols: tuple[Symbol, ...],
    is_interpreted: IsInterpreted | None = None,
) -> tuple[PlanTemplate, KernelSource | None]:
    """Render for all sizes: the plan and the size arguments are filled in at each call."""
    program, distinct = schedule.program, _distinct(schedule, target)
    nests = [step for step in program.steps if isinstance(step, Nest)]
    taken = {nest.name: nest_symbols(nest, program.buffers) for nest in nests}
    taken |= {name: kernel.symbols for name, kernel in distinct.attention.items()}
    sizes = {name: _size_arguments(target.tier, found) for name, found in taken.items() if found}
    template = PlanTemplate(build_plan(schedule, distinct, sizes), symbols)
    return template, _source(schedule, distinct, target, {}, is_interpreted)


def _distinct(schedule: Schedule, target: Target) -> SharedKernels:
    """Return the kernels to write: those of nests, and of calls of flex_attention."""
    program = schedule.program
    nests = [step for step in program.steps if isinstance(step, Nest)]
    found = distinct_kernels(nests, program.buffers)
    if target.tier not in ATTENTION:
        return found
    calls = [step for step in program.steps if isinstance(step, Extern)]
    made = [one for step in calls if (one := attention_kernel(step, program.buffers))]
    if not made:
        return found
    is_written = load(f"codegen.{ATTENTION[target.tier]}").is_written
    return found.with_attention([one for one in made if is_written(one)])


def _source(
    schedule: Schedule,
    distinct: SharedKernels,
    target: Target,
    configs: Configs,
    is_interpreted: IsInterpreted | None,
) -> KernelSource | None:
    nests, buffers = distinct.nests, schedule.program.buffers
    if not nests:
        return None
    source = renderer_of(target.tier).render(nests, buffers, target, configs)
    if is_interpreted is None or not is_interpreted(source):
        return source
    return replace(source, meanwhile=_programs(nests, buffers, target))


def _programs(nests: Sequence[Rendered], buffers: Mapping[str, Buffer], target: Target) -> str:
    """Return the kernels as programs of the block interpreter. There are none if the graph has an
    attention, or a product that the interpreter does not take from the header files.
    """
    for nest in nests:
        if not isinstance(nest, Nest):
            return ""
        products = products_of(nest.outer, [store.value for store in nest.stores])
        if products and not programmed_products(structure(nest, buffers)):
            return ""
    try:
        return renderer_of("blocks").render(nests, buffers, target).text
    except CannotRender:
        return ""


def verify_kernels(
    schedule: Schedule, target: Target, configs: Configs = MappingProxyType({})
) -> None:
    """Check the kernels that `render` prints. Raises VerifyError."""
    distinct, buffers = _distinct(schedule, target), schedule.program.buffers
    if not distinct.nests:
        return
    renderer = renderer_of(target.tier)
    for nest in distinct.nests:
        kernel = renderer.kernel(nest, buffers, target, configs.get(nest.name))
        if kernel is not None:
            verify_kernel(kernel)


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
        stores = {store.buffer for store in nest.stores} if isinstance(nest, Nest) else nest.written
        made.append(KernelChoice(nest.name, configs, sources, len(stores)))
    return tuple(made)
