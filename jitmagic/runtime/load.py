"""load: from a plan and generated text to something callable.

Chooses by the source's language how kernels are built (C++ through the toolchain and the disk
cache, Triton through its compiler, numba through its own), then hands the plan to the native
executor. The order of what may be missing is: no native part -> NativeMissing; compiler refuses ->
ToolchainError. executable.py decides what to do about either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ..budget import check, left
from ..codegen.plan import KernelSource, Plan
from ..errors import ToolchainError
from ..options import Options
from ..symbols.scalar import Symbol
from ..target import Target
from .ahead import was_built_ahead
from .alignment import aligned_arguments, inputs_of_kernels
from .cuda_driver import load_function
from .cudagraph import can_replay, replayed
from .graph_pool import Shelf
from .native import (
    AtSizes,
    CpuEntry,
    CudaEntry,
    KernelEntry,
    executable_template,
    make_executable,
)
from .numba_kernels import build_functions
from .precompiled import refusals
from .store import open_store
from .triton_kernels import Cubin, build_cubins
from .units import build_units

__all__ = ["Loaded", "LoadedTemplate", "load", "load_template"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """`run(*tensors) -> tuple`; `cached`: the kernels came from the disk cache; `refused`: why they
    were compiled without the precompiled header, for the journal.
    """

    run: Callable[..., tuple[Any, ...]]
    cached: bool
    kernels: int
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedTemplate:
    """As Loaded, for all sizes."""

    plan: AtSizes
    cached: bool
    kernels: int
    shelf: Shelf | None = None  # where what runs at some sizes goes behind CUDA graphs


@dataclass(frozen=True, slots=True)
class _Kernels:
    """How each kernel is entered; `cached`: they came from the disk cache."""

    entries: Mapping[str, KernelEntry]
    cached: bool


Tell = Callable[[str], None]
Others = Mapping[str, CpuEntry]
_NO_OTHERS: Others = MappingProxyType({})


def _nobody(_: str) -> None:
    """Nobody listens to how far it is."""


def load(
    plan: Plan,
    source: KernelSource | None,
    target: Target,
    options: Options,
    tell: Tell = _nobody,
    others: Others = _NO_OTHERS,
) -> Loaded:
    """Build and bind the kernels of `source` and return the executable of `plan`. `tell` hears
    what is being waited for; `others`: what the plan launches besides.
    """
    if source is None or not source.symbols:
        loaded = Loaded(make_executable(plan, others), cached=True, kernels=0)
    else:
        loaded = _LOADERS[source.language](plan, source, target, options, tell, others)
    return replace(loaded, run=replayed(loaded.run, plan)) if options.cuda_graphs else loaded


def load_template(
    plan: Plan,
    source: KernelSource | None,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    tell: Tell = _nobody,
) -> LoadedTemplate:
    """As `load`, of a plan with Sizes. `symbols`: in the order of their values."""
    loaded = _loaded_template(plan, source, symbols, target, options, tell)
    shelf = Shelf() if options.cuda_graphs and can_replay(plan) else None
    return replace(loaded, shelf=shelf)


def _loaded_template(
    plan: Plan,
    source: KernelSource | None,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    tell: Tell,
) -> LoadedTemplate:
    if source is None or not source.symbols:
        return LoadedTemplate(executable_template(plan, {}, symbols), cached=True, kernels=0)
    if source.language == "triton":
        return _triton_template(plan, source, symbols, target, options, tell)
    if source.language == "numba":
        kernels = _numba_kernels(source, tell)
    else:
        kernels = _cpp_kernels(source, target, options, tell)
    made = executable_template(plan, kernels.entries, symbols)
    return LoadedTemplate(made, kernels.cached, len(kernels.entries))


def _load_cpp(
    plan: Plan, source: KernelSource, target: Target, options: Options, tell: Tell, others: Others
) -> Loaded:
    kernels = _cpp_kernels(source, target, options, tell)
    run = make_executable(plan, {**kernels.entries, **others})
    return Loaded(run, kernels.cached, len(kernels.entries), refusals())


def _cpp_kernels(source: KernelSource, target: Target, options: Options, tell: Tell) -> _Kernels:
    store = open_store(options.cache_dir)
    try:
        libraries = build_units(source.units, target, store, min(left(), options.budget), tell)
    except ToolchainError:
        check()  # the compiler was stopped because the time of the whole compile is up
        raise
    entries: dict[str, KernelEntry] = {
        name: CpuEntry(library.address(name), library) for name, library in libraries.items()
    }
    built = was_built_ahead(source, target)
    return _Kernels(entries, not built and all(lib.cached for lib in libraries.values()))


def _load_numba(
    plan: Plan, source: KernelSource, target: Target, options: Options, tell: Tell, others: Others
) -> Loaded:
    kernels = _numba_kernels(source, tell)
    run = make_executable(plan, {**kernels.entries, **others})
    return Loaded(run, kernels.cached, len(kernels.entries))


def _numba_kernels(source: KernelSource, tell: Tell) -> _Kernels:
    tell("numba")
    functions = build_functions(source)
    entries: dict[str, KernelEntry] = {
        name: CpuEntry(function.address, function) for name, function in functions.items()
    }
    return _Kernels(entries, cached=False)


def _load_triton(
    plan: Plan, source: KernelSource, target: Target, options: Options, tell: Tell, others: Others
) -> Loaded:
    """For inputs on 16-byte boundaries, and, built when first needed, for any inputs."""
    tell(f"Triton, {len(source.symbols)} kernels")
    inputs = inputs_of_kernels(plan)
    anywhere: list[Callable[..., tuple[Any, ...]]] = []

    def otherwise(*tensors: Any) -> tuple[Any, ...]:
        if not anywhere:
            kernels = _triton_kernels(plan, source, target, options, is_aligned=False)
            anywhere.append(make_executable(plan, {**kernels.entries, **others}))
        return anywhere[0](*tensors)

    kernels = _triton_kernels(plan, source, target, options)
    run = make_executable(plan, {**kernels.entries, **others}, inputs, otherwise)
    return Loaded(run, kernels.cached, len(kernels.entries))


def _triton_template(
    plan: Plan,
    source: KernelSource,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    tell: Tell,
) -> LoadedTemplate:
    """As `_load_triton`."""
    tell(f"Triton, {len(source.symbols)} kernels")
    inputs = inputs_of_kernels(plan)
    anywhere: list[AtSizes] = []

    def run_anywhere(values: tuple[int, ...], *tensors: Any) -> tuple[Any, ...]:
        if not anywhere:
            kernels = _triton_kernels(plan, source, target, options, is_aligned=False)
            anywhere.append(executable_template(plan, kernels.entries, symbols))
        return anywhere[0].at(values)(*tensors)

    kernels = _triton_kernels(plan, source, target, options)
    otherwise = partial(partial, run_anywhere)
    made = executable_template(plan, kernels.entries, symbols, inputs, otherwise)
    return LoadedTemplate(made, kernels.cached, len(kernels.entries))


def _triton_kernels(
    plan: Plan, source: KernelSource, target: Target, options: Options, is_aligned: bool = True
) -> _Kernels:
    """`is_aligned`: whether all inputs are on 16-byte boundaries."""
    flags = aligned_arguments(plan, inputs=is_aligned)
    store, device = open_store(options.cache_dir), plan.device.index or 0
    cubins, cached = build_cubins(source, flags, target, store)
    try:
        entries = _cuda_entries(cubins, source, device)
    except ToolchainError:
        if not cached:
            raise
        # The driver refuses what the cache has: whole, but of no use.
        cubins, cached = build_cubins(source, flags, target, store, anew=True)
        entries = _cuda_entries(cubins, source, device)
    return _Kernels(entries, cached)


def _cuda_entries(
    cubins: Mapping[str, Cubin], source: KernelSource, device: int
) -> dict[str, KernelEntry]:
    entries: dict[str, KernelEntry] = {}
    for name, cubin in cubins.items():
        function = load_function(cubin.image, cubin.name, cubin.shared_bytes, device)
        grid = replace(source.grids[name], num_warps=cubin.warps)
        numbers = source.by_value.get(name, ())
        entries[name] = CudaEntry(function, grid, cubin.shared_bytes, cubin.scratch, None, numbers)
    return entries


_LOADERS: dict[str, Callable[[Plan, KernelSource, Target, Options, Tell, Others], Loaded]] = {
    "cpp": _load_cpp,
    "numba": _load_numba,
    "triton": _load_triton,
}
