"""Writes executables as data, and makes them again.

In: an executable with a `Construction` (construction.py): the name of the factory that made it, and
arguments that are data, executables or graphs. Out: JSON. Reading calls the factory of that name,
one of `FACTORIES`; a backward is read when it first runs. Graphs are written as text of their own,
which is parsed when a stage asks for the graph: a call never does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from threading import RLock
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from ..autograd.autograd_function import (
    BackwardCache,
    differentiable,
    differentiable_template,
    fx_executable,
)
from ..autograd.replay import Replay
from ..bytecode import FrameSnapshot
from ..codegen.plan import KernelSource, Plan
from ..construction import Construction, construction_of, nothing
from ..devices import Target, find_target
from ..errors import CannotKeep
from ..frame.handle import Handle
from ..frame.locked_frames import RetryEager
from ..frame.native import Dispatcher, release_arguments
from ..late import load as load_late
from ..options import Options
from ..runtime import native
from ..runtime.load import load, load_template
from ..symbols.context import Context
from ..symbols.size import Size
from ..symbols.size_programs import SizeProgram, size_program
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable
from .code_objects import CODE_READERS
from .codec import Json, Reader, Writer
from .guards import FrameReader, FrameWriter, Mismatch, refer, resolve
from .vocabulary import vocabulary

__all__ = ["ArtifactReader", "ArtifactWriter", "Backwards"]

_KEPT = 64  # as compile/sized_backwards.py


class Backwards(Protocol):
    """What executables need of the compiler of their process, for graphs that are not compiled."""

    options: Options

    def build(self, graph: GraphModule) -> Executable:
        """Compile a backward graph."""

    def size_compiler(self, state: tuple[Any, ...]) -> Any:
        """Return a SizeCompiler (compile/sizes.py) of these parts of a trace."""

    def sized_backwards(self, graphs: tuple[Any, ...]) -> Any:
        """Return SizedBackwards (compile/sized_backwards.py) of these graphs."""

    def warn_of_replay(self, is_outdated: bool) -> None:
        """Warn that a backward runs op by op."""


class GraphWriter(Writer):
    """Writes the data of a graph (graph/data/), whose functions modules name."""

    def other(self, value: Any) -> Json:
        """Return the data of a function or a class."""
        return {"$": "ref", "to": refer(value)}


def _stored(value: tuple[Any, ...]) -> str:
    """Return graphs with the Sizes that they share, as text."""
    writer = GraphWriter(_graph_vocabulary())
    data = writer.write(load_late("graph.data.writing").stored(value))
    return json.dumps({"shared": writer.shared, "data": data})


def _restored(text: str) -> tuple[Any, ...]:
    document = json.loads(text)
    inner = Reader(_graph_vocabulary(), document["shared"], {"ref": _READERS["ref"]})
    made: tuple[Any, ...] = load_late("graph.data.reading").restored(inner.read(document["data"]))
    return made


def write_size(writer: Writer, size: Size) -> Json:
    """Return the data of a size, with the Context that it is known in."""
    return {"$": "dimension", "expr": writer.write(size.expr), "in": writer.write(size.context)}


def _graph(reader: Any, data: Json) -> GraphModule:
    document = json.loads(data["text"])
    inner = Reader(_graph_vocabulary(), document["shared"], {"ref": _READERS["ref"]})
    made: GraphModule = load_late("graph.data.reading").graph_of(inner.read(document["data"]))
    return made


@cache
def _graph_vocabulary() -> dict[str, type]:
    forms = load_late("graph.data.forms")
    return vocabulary() | {name: getattr(forms, name) for name in forms.__all__}


class ArtifactWriter(FrameWriter):
    """Writes an entry of a handle with its executables."""

    def __init__(self, handle: Handle, *given: Any) -> None:
        super().__init__(*given)
        self.handle, self.code = handle, handle.original.code
        self.growing: list[Any] = []  # parts that change when more is compiled: see `on_change`

    def resume_key(self, dispatcher: Dispatcher) -> tuple[Any, ...]:
        """Return the data of the key of a resume function."""
        root = self.handle.flat.root
        for key, resumed in root.resumes.items():
            if resumed is dispatcher:
                places = enumerate(root.body.instructions)
                place = next(n for n, one in places if one is key.instruction)
                return place, key.names, key.nulls, key.release is not None
        raise CannotKeep("a dispatcher of another function")

    def other(self, value: Any) -> Json:
        """Return the data of an executable, or of an object that a module names."""
        if isinstance(value, BackwardCache):
            return self._backward(value)
        if isinstance(value, Replay):
            graph = value.graph()
            written = None if graph is None else self._graph(graph)
            return {"$": "replay", "graph": written, "state": self.write(value.state)}
        if isinstance(value, GraphModule):
            return self._graph(value)
        if isinstance(value, Size):
            return write_size(self, value)
        if isinstance(value, Context):
            return self.memoised(value, lambda one: {"$": "context", "facts": self.write(one.facts)})
        if hasattr(value, "graphs"):
            return self._sized_backwards(value)
        if type(value).__name__ == "SizedState":
            return {"$": "sizes", "text": _stored((value.graph, value.inputs, value.mutated))}
        if hasattr(value, "construction"):
            return self.memoised(value, self._executable)
        return super().other(value)

    def _executable(self, value: Any) -> Json:
        made: Construction = construction_of(value)
        if made.factory == "by_sizes":
            self.growing.append(made)
        return {"$": "made", "by": made.factory, "of": self.write(made.arguments)}

    def _backward(self, cache: BackwardCache) -> Json:
        graph = cache.graph()
        self.growing.append(cache)
        return {
            "$": "backward",
            "tangents": cache.tangents,
            "graph": None if graph is None else self.write(graph),
            "made": [[list(missing), self.write(run)] for missing, run in cache.made.items()],
        }

    def _sized_backwards(self, backwards: Any) -> Json:
        self.growing.append(backwards)
        graphs = backwards.graphs
        made = []
        for missing, run in backwards.made.items():
            *_, templates, alone = construction_of(run).arguments
            made.append([list(missing), self.write(tuple(templates)), self.write(alone)])
        parts = (graphs.backward, graphs.source, graphs.tangents, graphs.predicates)
        return {"$": "backwards", "text": _stored(parts), "made": made}

    def _graph(self, graph: GraphModule) -> Json:
        """Return a graph as text of its own, which only a stage that needs it parses."""
        writer = GraphWriter(_graph_vocabulary())
        data = writer.write(load_late("graph.data.writing").graph_data(graph))
        return {"$": "graph", "text": json.dumps({"shared": writer.shared, "data": data})}


class ArtifactReader(FrameReader):
    """Reads an entry, and makes its executables."""

    def __init__(
        self,
        handle: Handle | None,
        shared: list[Json],
        snapshot: FrameSnapshot,
        backwards: Backwards,
    ) -> None:
        """`handle`: None for a file, which has no code of the program."""
        super().__init__(vocabulary(), shared, snapshot, _READERS)
        self.handle, self.code, self.namespace = handle, snapshot.code, snapshot.globals
        self.backwards, self.caches = backwards, list[BackwardCache]()
        self.growing: list[Any] = []  # as ArtifactWriter's
        self.retries: list[RetryEager] = []

    def load_plan(self, plan: Plan, source: KernelSource | None, target: Target) -> Executable:
        """Load a plan, and its kernels from the cache."""
        options = self.backwards.options
        here = find_target(plan.device, options)
        if here != target and source is not None:
            raise Mismatch(f"its kernels are for {target}, this machine is {here}")
        return load(plan, source, target, options).run

    def load_plans(
        self, plan: Plan, source: KernelSource | None, symbols: tuple[Symbol, ...], target: Target
    ) -> Any:
        """Load a plan for all sizes, and its kernels from the cache."""
        options = self.backwards.options
        here = find_target(plan.device, options)
        if here != target and source is not None:
            raise Mismatch(f"its kernels are for {target}, this machine is {here}")
        return load_template(plan, source, symbols, target, options).plan

    def retry(self, is_locked: bool) -> RetryEager:
        """Return what a residual calls when its graph has raised."""
        self.retries.append(RetryEager(self.handle, is_locked=is_locked))
        return self.retries[-1]

    def resume(self, data: tuple[Any, ...]) -> Dispatcher:
        """Return the dispatcher of a resume function; the tracer's view of the code makes it."""
        place, names, nulls, releases = data
        flat = self.handle.flat
        instruction = flat.root.body.instructions[place]
        release = release_arguments if releases else None
        flat.root.releases_arguments |= releases
        key = load_late("trace.residual.resume").ResumeKey(instruction, names, nulls, release)
        found: Dispatcher = flat.resume(key, self.handle.resume_dispatcher)
        return found


def _made(reader: ArtifactReader, data: Json) -> Any:
    make = FACTORIES[data["by"]]
    return make(reader, *reader.read(data["of"]))


def _backward(reader: ArtifactReader, data: Json) -> BackwardCache:
    build = reader.backwards.build
    cache = BackwardCache(build, partial(reader.read, data["graph"]), data["tangents"])
    stored = {tuple(missing): run for missing, run in data["made"]}
    cache.stored = {missing: partial(reader.read, run) for missing, run in stored.items()}
    reader.caches.append(cache)
    reader.growing.append(cache)
    return cache


def _replay(reader: ArtifactReader, data: Json) -> Replay:
    graph = partial(reader.read, data["graph"])
    return Replay.of_state(graph, reader.read(data["state"]), reader.backwards.warn_of_replay)


_READERS: Mapping[str, Callable[[Any, Json], Any]] = {
    **CODE_READERS,
    "made": _made,
    "backward": _backward,
    "replay": _replay,
    "graph": _graph,
    "backwards": lambda reader, data: _LoadedBackwards(reader, data),
    "sizes": lambda reader, data: data["text"],
    "context": lambda reader, data: Context.of(reader.read(data["facts"])),
    "dimension": lambda reader, data: Size(reader.read(data["expr"]), reader.read(data["in"])),
    "ref": lambda reader, data: resolve(data["to"]),
}


# --------------------------------------------------------------------------------------- factories




def _of(factory: Callable[..., Any]) -> Callable[..., Any]:
    return lambda reader, *arguments: factory(*arguments)


def _by_sizes(
    reader: ArtifactReader,
    places: tuple[tuple[int, int], ...],
    most: int,
    excluded: tuple[tuple[int, ...], ...],
    state: str | None,
    templates: list[tuple[SizeProgram, native.SizeTemplate]],
    alone: dict[tuple[int, ...], Executable],
) -> native.BySizes:
    """Return an executable for the stored sizes, which compiles for others from the stored trace."""
    if state is None:
        raise Mismatch("an executable for some sizes alone")
    compilers: list[Any] = []

    def missed(values: tuple[int, ...], inputs: tuple[torch.Tensor, ...]) -> Executable:
        if not compilers:
            compilers.append(reader.backwards.size_compiler(_restored(state)))
            compilers[0].run = made
        run: Executable = compilers[0].missed(values, inputs)
        return run

    made = native.by_sizes(places, missed, most, excluded)
    _fill(made, templates, alone)
    reader.growing.append(construction_of(made))
    return made


def _fill(run: native.BySizes, templates: Iterable[Any], alone: Mapping[Any, Executable]) -> None:
    for predicates, template in templates:
        native.add_template(run, predicates, template)
    for values, executable in alone.items():
        native.add_alone(run, values, executable)


class _LoadedBackwards:
    """The backwards for all sizes that another process has compiled; others are compiled here."""

    def __init__(self, reader: ArtifactReader, data: Json) -> None:
        self._reader, self._text = reader, data["text"]
        self._stored = {tuple(missing): parts for missing, *parts in data["made"]}
        self._compiler: Any = None
        self.made: dict[tuple[int, ...], native.BySizes] = {}
        self.on_change: Callable[[], None] = nothing
        reader.growing.append(self)
        self._lock = RLock()

    @property
    def compiler(self) -> Any:
        """The SizedBackwards, with its graphs."""
        with self._lock:
            if self._compiler is None:
                self._compiler = self._reader.backwards.sized_backwards(_restored(self._text))
            return self._compiler

    @property
    def graphs(self) -> Any:
        """The graphs, for the data of a further process."""
        return self.compiler.graphs

    def source(self, values: tuple[int, ...]) -> GraphModule:
        """Return the torch-level graph at these sizes."""
        graph: GraphModule = self.compiler.source(values)
        return graph

    def __call__(self, missing: tuple[int, ...]) -> native.BySizes:
        """Return the backward without these tangents, for each size tuple."""
        with self._lock:
            if missing not in self.made:
                self.made[missing] = self._new(missing)
            return self.made[missing]

    def _new(self, missing: tuple[int, ...]) -> native.BySizes:
        builders: list[Any] = []

        def missed(values: tuple[int, ...], inputs: object) -> Executable:
            if not builders:
                builders.append(self.compiler.builder(missing))
                builders[0].run = made
            run: Executable = builders[0].missed(values)
            return run

        made = native.by_sizes((), missed, _KEPT)
        if missing in self._stored:
            templates, alone = self._stored[missing]
            _fill(made, self._reader.read(templates), self._reader.read(alone))
        construction_of(made).on_change = lambda: self.on_change()
        return made


FACTORIES: Mapping[str, Callable[..., Any]] = {
    "load": lambda reader, *given: reader.load_plan(*given),
    "op_by_op": _of(fx_executable),
    "interpreted": lambda reader, graph: load_late("compile.backends").interpreted_by_torch(graph),
    "differentiable": _of(differentiable),
    "differentiable_template": _of(differentiable_template),
    "size_program": _of(size_program),
    "by_sizes": _by_sizes,
    "load_template": lambda reader, *given: reader.load_plans(*given),
    **{
        name: _of(getattr(native, name))
        for name in (
            *("with_numbers", "with_held_objects", "undo_on_error", "freed_results"),
            *("split_graph", "split_template", "torch_call"),
        )
    },
}
