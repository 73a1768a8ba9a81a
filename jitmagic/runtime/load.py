"""Loads a plan and its generated text as a callable.

The source's language decides how kernels are built (C++ through the toolchain and the disk cache,
Triton and numba through their compilers). The native executor then runs the plan. A missing
extension raises NativeMissing, a compiler error ToolchainError; executable.py handles both.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..budget import check, left, stopped
from ..codegen.plan import KernelSource, Plan, PlanTemplate
from ..construction import made_by
from ..devices import Target
from ..errors import ExtensionFailed, ToolchainError
from ..extend.devices import RENDERERS
from ..extension import runtime_module
from ..late import late_names
from ..lazy_dataclass import dataclass, field, replace
from ..options import Options
from ..replacements import Replacement
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable
from .alignment import aligned_arguments, inputs_of_kernels
from .background_builds import is_interpreted_meanwhile, replace_later, was_built_ahead
from .cuda_graphs.graph_pool import GraphPool
from .native import (
    CpuEntry,
    CudaEntry,
    KernelEntry,
    SizeTemplate,
    called_template,
    executable_template,
    make_executable,
)
from .store import content_key, store_of

if TYPE_CHECKING:
    from .cuda_driver import load_function
    from .cuda_graphs.replayer import Replayer, can_replay, replaying
    from .numba_kernels import build_functions
    from .precompiled import refusals
    from .toolchain import Library, library_file
    from .translation_units import build_units
    from .triton_kernels import Cubin, build_cubins, cubins_of_files
else:
    late_names(
        globals(),
        {
            "runtime.cuda_driver": "load_function",
            "runtime.cuda_graphs.replayer": "Replayer, can_replay, replaying",
            "runtime.numba_kernels": "build_functions",
            "runtime.precompiled": "refusals",
            "runtime.toolchain": "Library, library_file",
            "runtime.translation_units": "build_units",
            "runtime.triton_kernels": "build_cubins, cubins_of_files",
        },
    )

__all__ = ["Loaded", "LoadedTemplate", "load", "load_template"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """`run(*tensors) -> tuple`. `cached`: the kernels came from the disk cache. `refused`: reasons
    for compiling without the precompiled header, for the journal. `files`: the kernels' names in
    the disk cache. `meanwhile`: the end of kernels that are interpreted until these are built.
    `replayers`: those of its CUDA graphs that are alive. `bind` returns the executable of another
    plan that launches the same kernels.
    """

    run: Executable
    cached: bool
    kernels: int
    refused: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    meanwhile: Replacement | None = None
    replayers: Collection[Replayer] = ()
    bind: Callable[[Plan], Executable] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LoadedTemplate:
    """Is a Loaded that serves all values of the symbols."""

    plan: SizeTemplate
    cached: bool
    kernels: int
    files: tuple[str, ...] = ()
    meanwhile: Replacement | None = None
    replayers: Collection[Replayer] = ()
    bind: Callable[[Plan], SizeTemplate] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Holds the entry point of each kernel; `cached`: they came from the disk cache, where `files`
    are their names. `meanwhile`: as Loaded's.
    """

    entries: Mapping[str, KernelEntry]
    cached: bool
    files: tuple[str, ...] = ()
    meanwhile: Replacement | None = None


Report = Callable[[str], None]
Others = Mapping[str, CpuEntry]
Images = Mapping[str, bytes]
_NO_OTHERS: Others = MappingProxyType({})


def _ignore(_: str) -> None:
    """Ignore a progress message."""


def load(
    plan: Plan,
    source: KernelSource | None,
    target: Target,
    options: Options,
    report: Report = _ignore,
    others: Others = _NO_OTHERS,
    images: Images | None = None,
) -> Loaded:
    """Build and bind the kernels of `source` and return the executable of `plan`. `report` receives
    progress messages; `others` are further kernels that the plan launches; `images`: shared objects
    of C++ units, by their text, or files of Triton kernels (`triton_kernels.cubin_files`), in place
    of those of the cache.
    """
    if source is None or not source.symbols:
        bind = partial(make_executable, kernels=others)
        loaded = Loaded(bind(plan), cached=True, kernels=0, bind=bind)
    elif source.language == "triton":
        loaded = _load_triton(plan, source, target, options, report, others, images)
    else:
        loaded = _load_host(plan, source, target, options, report, others, images)
    if options.cuda_graphs and can_replay(plan):
        replayer = Replayer(loaded.run, plan, bind=loaded.bind)
        loaded = replace(loaded, run=replaying(replayer), replayers=WeakSet([replayer]))
    if not others:
        made_by(loaded.run, "load", plan, source, target)
    return loaded


def load_template(
    plan: Plan,
    source: KernelSource | None,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    report: Report = _ignore,
    images: Images | None = None,
) -> LoadedTemplate:
    """Load a plan with Sizes. `symbols` are in the order of their values; `images`: as `load`'s."""
    loaded = _loaded_template(plan, source, symbols, target, options, report, images)
    if options.cuda_graphs and can_replay(plan):
        loaded = _recorded_at_sizes(loaded, PlanTemplate(plan, tuple(symbols)))
    made_by(loaded.plan, "load_template", plan, source, tuple(symbols), target)
    return loaded


def _recorded_at_sizes(loaded: LoadedTemplate, plans: PlanTemplate) -> LoadedTemplate:
    """Return a template whose executables are replayed: each size tuple has its own CUDA graph."""
    pool, made, template, bind = GraphPool(), WeakSet[Replayer](), loaded.plan, loaded.bind

    def replaying_at(values: tuple[int, ...]) -> Executable:
        bind_at = None if bind is None else lambda part: bind(part).at(values)
        replayer = Replayer(template.at(values), plans.plan(values), pool, bind_at)
        made.add(replayer)
        return replaying(replayer)

    return replace(loaded, plan=called_template(replaying_at), replayers=made)


def _loaded_template(
    plan: Plan,
    source: KernelSource | None,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    report: Report,
    images: Images | None,
) -> LoadedTemplate:
    if source is None or not source.symbols:
        bind = partial(executable_template, kernels={}, symbols=symbols)
        return LoadedTemplate(bind(plan), cached=True, kernels=0, bind=bind)
    if source.language == "triton":
        return _triton_template(plan, source, symbols, target, options, report, images)
    kernels = _host_kernels(source, target, options, report, images)
    bind = partial(executable_template, kernels=kernels.entries, symbols=symbols)
    count, made = len(kernels.entries), bind(plan)
    return LoadedTemplate(made, kernels.cached, count, kernels.files, kernels.meanwhile, bind=bind)


def _load_host(
    plan: Plan,
    source: KernelSource,
    target: Target,
    options: Options,
    report: Report,
    others: Others,
    images: Images | None,
) -> Loaded:
    if others:  # they time the kernels, so these are the compiled ones
        source = replace(source, meanwhile="")
    kernels = _host_kernels(source, target, options, report, images)
    bind = partial(make_executable, kernels={**kernels.entries, **others})
    refused = refusals() if source.language == "cpp" else ()
    found = kernels.cached, len(kernels.entries), refused, kernels.files, kernels.meanwhile
    return Loaded(bind(plan), *found, bind=bind)


def _host_kernels(
    source: KernelSource, target: Target, options: Options, report: Report, images: Images | None
) -> _Kernels:
    """Build kernels that are functions of the host, `int (void* const* args)`."""
    if source.language == "cpp":
        if images is not None:
            return _kernels_of_images(source, images)
        if source.meanwhile and is_interpreted_meanwhile(source, target, options):
            return _replaced_kernels(source, target, options)
        return _cpp_kernels(source, target, options, report)
    if source.language == "blocks":
        return _Kernels(_interpreted(source, source.text, target)[1], cached=False)
    if source.language == "numba":
        return _numba_kernels(source, report)
    return _registered_kernels(source, target, report)


def _cpp_kernels(
    source: KernelSource, target: Target, options: Options, report: Report
) -> _Kernels:
    store = store_of(options)
    try:
        seconds = min(left(), options.budget)
        libraries = build_units(source.units, target, store, seconds, report, stopped())
    except ToolchainError:
        check()  # the compiler was stopped because the compile's budget is used up
        raise
    entries: dict[str, KernelEntry] = {
        name: CpuEntry(library.address(name), library) for name, library in libraries.items()
    }
    built = was_built_ahead(source, target)
    files = tuple(dict.fromkeys(library.file for library in libraries.values()))
    return _Kernels(entries, not built and all(lib.cached for lib in libraries.values()), files)


def _kernels_of_images(source: KernelSource, images: Images) -> _Kernels:
    """Return the kernels of shared objects that are given."""
    entries: dict[str, KernelEntry] = {}
    for unit in source.units:
        image, folder = images[unit.text], Path(tempfile.gettempdir())
        library = Library(image, content_key(image), unit.symbols, True, folder)
        entries |= {name: CpuEntry(library.address(name), library) for name in unit.symbols}
    return _Kernels(entries, cached=True)


def _interpreted(
    source: KernelSource, text: str, target: Target
) -> tuple[Any, dict[str, KernelEntry]]:
    """Return programs of the block interpreter for the kernels of a source, and them as kernels."""
    try:
        programs = runtime_module().BlockKernels(text, target.isa)
    except ValueError as error:
        raise ToolchainError("the block interpreter", "read kernels", str(error)) from error
    found = programs.entries()
    if {name: len(dtypes) for name, dtypes in source.symbols.items()} != {
        name: count for name, (_, _, count) in found.items()
    }:
        raise ToolchainError("the block interpreter", "read kernels", "these are other kernels")
    return programs, {
        name: CpuEntry(address, programs, context) for name, (address, context, _) in found.items()
    }


def _replaced_kernels(source: KernelSource, target: Target, options: Options) -> _Kernels:
    """Return kernels that are interpreted until C++ ones, built on another thread, replace them."""
    programs, entries = _interpreted(source, source.meanwhile, target)
    files = tuple([library_file(unit.text, target) for unit in source.units])
    meanwhile = replace_later(source, target, options, programs.replace)
    return _Kernels(entries, False, files, meanwhile)


def _numba_kernels(source: KernelSource, report: Report) -> _Kernels:
    report("numba")
    functions = build_functions(source)
    entries: dict[str, KernelEntry] = {
        name: CpuEntry(function.address, function) for name, function in functions.items()
    }
    return _Kernels(entries, cached=False)


def _registered_kernels(source: KernelSource, target: Target, report: Report) -> _Kernels:
    """Load kernels by the function that was registered with their renderer."""
    row = RENDERERS.rows[source.language]
    report(row.name)
    functions = row.call("loader", row.load, source, target)
    entries: dict[str, KernelEntry] = {}
    for name in source.symbols:
        try:
            address = ctypes.cast(functions[name], ctypes.c_void_p).value or 0
        except (LookupError, TypeError, ctypes.ArgumentError) as error:
            why = f"returned no ctypes function for {name!r}"
            raise ExtensionFailed("loader", repr(row.name), row.load, why) from error
        entries[name] = CpuEntry(address, functions[name])
    return _Kernels(entries, cached=False)


def _load_triton(
    plan: Plan,
    source: KernelSource,
    target: Target,
    options: Options,
    report: Report,
    others: Others,
    images: Images | None,
) -> Loaded:
    """Load kernels for 16-byte aligned inputs, and build those for any inputs at first use."""
    report(f"Triton, {len(source.symbols)} kernels")
    given = plan, source, target, options, images
    kernels = _triton_kernels(*given)
    entries = {**kernels.entries, **others}

    @cache
    def unaligned() -> Mapping[str, KernelEntry]:
        return {**_triton_kernels(*given, is_aligned=False).entries, **others}

    def bind(part: Plan) -> Executable:
        made = cache(lambda: make_executable(part, unaligned()))

        def fallback(*tensors: object) -> tuple[object, ...]:
            return made()(*tensors)

        return make_executable(part, entries, inputs_of_kernels(part), fallback)

    count, files = len(kernels.entries), kernels.files
    return Loaded(bind(plan), kernels.cached, count, files=files, bind=bind)


def _triton_template(
    plan: Plan,
    source: KernelSource,
    symbols: Sequence[Symbol],
    target: Target,
    options: Options,
    report: Report,
    images: Images | None,
) -> LoadedTemplate:
    """Load a Triton plan with Sizes; see `_load_triton`."""
    report(f"Triton, {len(source.symbols)} kernels")
    given = plan, source, target, options, images
    kernels = _triton_kernels(*given)

    @cache
    def unaligned() -> Mapping[str, KernelEntry]:
        return _triton_kernels(*given, is_aligned=False).entries

    def bind(part: Plan) -> SizeTemplate:
        made = cache(lambda: executable_template(part, unaligned(), symbols))

        def run(values: tuple[int, ...], *tensors: object) -> tuple[object, ...]:
            return made().at(values)(*tensors)

        fallback = partial(partial, run)
        return executable_template(
            part, kernels.entries, symbols, inputs_of_kernels(part), fallback
        )

    count, files = len(kernels.entries), kernels.files
    return LoadedTemplate(bind(plan), kernels.cached, count, files=files, bind=bind)


def _triton_kernels(
    plan: Plan,
    source: KernelSource,
    target: Target,
    options: Options,
    images: Images | None,
    is_aligned: bool = True,
) -> _Kernels:
    """Build the Triton kernels; `is_aligned` says that all inputs are on 16-byte boundaries."""
    flags = aligned_arguments(plan, inputs=is_aligned)
    store, device = store_of(options), plan.device.index or 0
    if images is not None:
        return _Kernels(_cuda_entries(cubins_of_files(source, flags, images), source, device), True)
    cubins, cached = build_cubins(source, flags, target, store)
    try:
        entries = _cuda_entries(cubins, source, device, loads=not target.processor)
    except ToolchainError:
        if not cached:
            raise
        # The driver rejects the cached code, although its checksum is correct.
        cubins, cached = build_cubins(source, flags, target, store, anew=True)
        entries = _cuda_entries(cubins, source, device)
    return _Kernels(entries, cached, tuple(file for c in cubins.values() for file in c.files))


def _cuda_entries(
    cubins: Mapping[str, Cubin], source: KernelSource, device: int, loads: bool = True
) -> dict[str, KernelEntry]:
    """Load kernels. `loads`: False for another machine's, whose launches fail here."""
    entries: dict[str, KernelEntry] = {}
    for name, cubin in cubins.items():
        given = cubin.image, cubin.name, cubin.shared_bytes, device
        function = load_function(*given) if loads else 0
        grid = replace(source.grids[name], num_warps=cubin.warps)
        numbers = source.by_value.get(name, ())
        entries[name] = CudaEntry(function, grid, cubin.shared_bytes, cubin.scratch, None, numbers)
    return entries
