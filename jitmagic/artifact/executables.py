"""Writes executables as data, and makes them again.

In: an executable with a `Construction` (construction.py): the name of the factory that made it, and
arguments that are data, executables or graphs. Out: JSON. Reading calls the factory of that name,
one of `FACTORIES`; a backward is read when it first runs. Graphs are written as text of their own,
which is parsed when a stage asks for the graph: a call never does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Protocol

from torch.fx import GraphModule

from ..autograd.autograd_function import BackwardCache, differentiable, fx_executable
from ..autograd.replay import Replay
from ..bytecode import FrameSnapshot
from ..codegen.plan import KernelSource, Plan
from ..construction import Construction, construction_of
from ..devices import Target, find_target
from ..errors import CannotKeep
from ..frame.handle import Handle
from ..frame.locked_frames import RetryEager
from ..frame.native import Dispatcher, release_arguments
from ..late import load as load_late
from ..options import Options
from ..runtime import native
from ..runtime.load import load
from ..torch_types import Executable
from .code_objects import CODE_READERS
from .codec import Json, Reader, Writer
from .guards import FrameReader, FrameWriter, Mismatch, refer, resolve
from .vocabulary import vocabulary

__all__ = ["ArtifactReader", "ArtifactWriter", "Backwards"]


class Backwards(Protocol):
    """What executables need of the compiler of their process, for graphs that are not compiled."""

    options: Options

    def build(self, graph: GraphModule) -> Executable:
        """Compile a backward graph."""

    def warn_of_replay(self, is_outdated: bool) -> None:
        """Warn that a backward runs op by op."""


class GraphWriter(Writer):
    """Writes the data of a graph (graph/data/), whose functions modules name."""

    def other(self, value: Any) -> Json:
        """Return the data of a function or a class."""
        return {"$": "ref", "to": refer(value)}


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
        if hasattr(value, "construction"):
            return self.memoised(value, self._executable)
        return super().other(value)

    def _executable(self, value: Any) -> Json:
        made: Construction = construction_of(value)
        return {"$": "made", "by": made.factory, "of": self.write(made.arguments)}

    def _backward(self, cache: BackwardCache) -> Json:
        graph = cache.graph()
        return {
            "$": "backward",
            "tangents": cache.tangents,
            "graph": None if graph is None else self.write(graph),
            "made": [[list(missing), self.write(run)] for missing, run in cache.made.items()],
        }

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
        self.retries: list[RetryEager] = []

    def load_plan(self, plan: Plan, source: KernelSource | None, target: Target) -> Executable:
        """Load a plan, and its kernels from the cache."""
        options = self.backwards.options
        here = find_target(plan.device, options)
        if here != target and source is not None:
            raise Mismatch(f"its kernels are for {target}, this machine is {here}")
        return load(plan, source, target, options).run

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
    "ref": lambda reader, data: resolve(data["to"]),
}


# --------------------------------------------------------------------------------------- factories




def _of(factory: Callable[..., Any]) -> Callable[..., Any]:
    return lambda reader, *arguments: factory(*arguments)


FACTORIES: Mapping[str, Callable[..., Any]] = {
    "load": lambda reader, *given: reader.load_plan(*given),
    "op_by_op": _of(fx_executable),
    "interpreted": lambda reader, graph: load_late("compile.backends").interpreted_by_torch(graph),
    "differentiable": _of(differentiable),
    **{
        name: _of(getattr(native, name))
        for name in (
            *("with_numbers", "with_held_objects", "undo_on_error", "freed_results"),
            *("split_graph", "split_template", "torch_call"),
        )
    },
}
