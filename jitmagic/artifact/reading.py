"""Reads an entry, and makes its executables.

In: JSON that writing.py has written, and the frame of a call. Out: guards bound to the objects of
the frame, and executables, made by the factory that the data name, one of `FACTORIES`. A backward
is read when it first runs, a graph when a stage asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from ..autograd.autograd_function import (
    BackwardCache,
    differentiable,
    differentiable_template,
    fx_executable,
)
from ..autograd.replay import Replay
from ..bytecode import FrameSnapshot
from ..codegen.plan import KernelSource, Plan
from ..devices import Target, find_target
from ..frame.handle import Handle
from ..frame.locked_frames import RetryEager
from ..frame.native import Dispatcher, release_arguments
from ..late import load as load_late
from ..lazy_dataclass import replace
from ..runtime import native
from ..runtime.load import load, load_template
from ..symbols.context import Context
from ..symbols.size import Size
from ..symbols.size_programs import size_program
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable
from .code_objects import CODE_READERS
from .codec import Json
from .collectives import COLLECTIVE_READERS
from .graph_texts import graph_of
from .guards import FrameReader, Mismatch
from .later import LaterBuilds
from .sizes import LoadedBackwards, loaded_by_sizes
from .vocabulary import vocabulary

__all__ = ["ArtifactReader"]


class ArtifactReader(FrameReader):
    """Reads an entry, and makes its executables."""

    def __init__(
        self,
        handle: Handle | None,
        shared: list[Json],
        snapshot: FrameSnapshot,
        later: LaterBuilds,
        special: Mapping[str, Callable[[Any, Json], Any]] = MappingProxyType({}),
    ) -> None:
        """`handle`: None for a file, which has no code of the program."""
        super().__init__(vocabulary(), shared, snapshot, {**_READERS, **special})
        self.handle, self.code, self.namespace = handle, snapshot.code, snapshot.globals
        self.later, self.caches = later, list[BackwardCache]()
        self.growing: list[Any] = []  # as ArtifactWriter's
        self.retries: list[RetryEager] = []
        self.files: list[str] = []  # of the kernels, in the cache

    def load_plan(self, plan: Plan, source: KernelSource | None, target: Target) -> Executable:
        """Load a plan and its kernels."""
        self.check_target(plan, source, target)
        images = self.images_of(source)
        loaded = load(plan, source, target, self.later.options, images=images)
        self.files += loaded.files
        return loaded.run

    def load_plans(
        self, plan: Plan, source: KernelSource | None, symbols: tuple[Symbol, ...], target: Target
    ) -> Any:
        """Load a plan for all sizes, and its kernels."""
        self.check_target(plan, source, target)
        images = self.images_of(source)
        loaded = load_template(plan, source, symbols, target, self.later.options, images=images)
        self.files += loaded.files
        return loaded.plan

    def images_of(self, source: KernelSource | None) -> Mapping[str, bytes] | None:
        """Return the shared objects of kernels by their text; None for those in the cache."""
        return None

    def check_target(self, plan: Plan, source: KernelSource | None, target: Target) -> None:
        """Raise Mismatch if kernels are for another machine. Those for more threads than there are
        run here too: workers of joblib, Ray and Dask have one each.
        """
        here = find_target(plan.device, self.later.options)
        fits = replace(target, threads=here.threads) == here and target.threads >= here.threads
        if source is not None and not fits:
            raise Mismatch(f"its kernels are for {target}, this machine is {here}")

    def retry(self, is_locked: bool) -> RetryEager:
        """Return what a residual calls when its graph has raised."""
        self.retries.append(RetryEager(self.owner, is_locked=is_locked))
        return self.retries[-1]

    @property
    def owner(self) -> Handle:
        """The handle of the entry. Raises Mismatch for a file, which belongs to no function."""
        if self.handle is None:
            raise Mismatch("a file has no resume functions")
        return self.handle

    def resume(self, data: tuple[Any, ...]) -> Dispatcher:
        """Return the dispatcher of a resume function; the tracer's view of the code makes it."""
        place, names, nulls, releases = data
        flat = self.owner.flat
        instruction = flat.root.body.instructions[place]
        release = release_arguments if releases else None
        flat.root.releases_arguments |= releases
        key = load_late("trace.residual.resume").ResumeKey(instruction, names, nulls, release)
        found: Dispatcher = flat.resume(key, self.owner.resume_dispatcher)
        return found


def _made(reader: ArtifactReader, data: Json) -> Any:
    make = FACTORIES[data["by"]]
    return make(reader, *reader.read(data["of"]))


def _backward(reader: ArtifactReader, data: Json) -> BackwardCache:
    build = reader.later.build
    cache = BackwardCache(build, partial(reader.read, data["graph"]), data["tangents"])
    stored = {tuple(missing): run for missing, run in data["made"]}
    cache.stored = {missing: partial(reader.read, run) for missing, run in stored.items()}
    reader.caches.append(cache)
    reader.growing.append(cache)
    return cache


def _replay(reader: ArtifactReader, data: Json) -> Replay:
    graph = partial(reader.read, data["graph"])
    return Replay.of_state(graph, reader.read(data["state"]), reader.later.warn_of_replay)


_READERS: Mapping[str, Callable[[Any, Json], Any]] = {
    **CODE_READERS,
    **COLLECTIVE_READERS,
    "made": _made,
    "backward": _backward,
    "replay": _replay,
    "graph": lambda reader, data: graph_of(data["text"]),
    "backwards": LoadedBackwards,
    "sizes": lambda reader, data: data["text"],
    "context": lambda reader, data: Context.of(reader.read(data["facts"])),
    "dimension": lambda reader, data: Size(reader.read(data["expr"]), reader.read(data["in"])),
}


# --------------------------------------------------------------------------------------- factories


def _of(factory: Callable[..., Any]) -> Callable[..., Any]:
    return lambda reader, *arguments: factory(*arguments)


FACTORIES: Mapping[str, Callable[..., Any]] = {
    "load": lambda reader, *given: reader.load_plan(*given),
    "op_by_op": _of(fx_executable),
    "interpreted": lambda reader, graph: load_late("compile.backends").interpreted_by_torch(graph),
    "differentiable": _of(differentiable),
    "differentiable_template": _of(differentiable_template),
    "size_program": _of(size_program),
    "by_sizes": loaded_by_sizes,
    "load_template": lambda reader, *given: reader.load_plans(*given),
    **{
        name: _of(getattr(native, name))
        for name in (
            *("with_numbers", "with_held_objects", "undo_on_error", "freed_results"),
            *("split_graph", "split_template", "torch_call"),
        )
    },
}
