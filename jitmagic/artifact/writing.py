"""Writes an entry with its executables as data.

In: an executable with a `Construction` (construction.py): the name of the factory that made it, and
arguments that are data, executables or graphs. Out: JSON, which reading.py reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from ..autograd.autograd_function import BackwardCache
from ..autograd.replay import Replay
from ..construction import Construction, StoredBy, construction_of
from ..errors import CannotKeep
from ..frame.handle import Handle
from ..frame.native import Dispatcher
from ..late import late_names
from ..symbols.context import Context
from ..symbols.size import Size
from .codec import Json
from .graph_texts import graph_text, stored_text
from .guards import FrameWriter

if TYPE_CHECKING:
    from .sizes import LoadedBackwards
else:
    late_names(globals(), {"artifact.sizes": "LoadedBackwards"})

__all__ = ["ArtifactWriter"]


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
            return {"$": "replay", "graph": self.write(graph), "state": self.write(value.state)}
        if isinstance(value, GraphModule):
            return {"$": "graph", "text": graph_text(value)}
        if isinstance(value, Size):
            return {
                "$": "dimension",
                "expr": self.write(value.expr),
                "in": self.write(value.context),
            }
        if isinstance(value, Context):
            return self.memoised(
                value, lambda one: {"$": "context", "facts": self.write(one.facts)}
            )
        if isinstance(value, StoredBy):
            made: Json = getattr(self, value.WRITER)(value)
            return made
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
            "graph": self.write(graph),
            "made": [[list(missing), self.write(run)] for missing, run in cache.known().items()],
        }

    def size_compiler(self, state: Any) -> Json:
        """Return the data of a SizedState (compile/sizes.py)."""
        return {"$": "sizes", "text": stored_text((state.graph, state.inputs, state.mutated))}

    def sized_backwards(self, backwards: Any) -> Json:
        """Return the data of SizedBackwards (compile/sized_backwards.py), or of loaded ones."""
        self.growing.append(backwards)
        graphs, made = backwards.graphs, []
        if isinstance(backwards, LoadedBackwards):
            backwards.read_all()  # else those that this process has not used would be lost
        for missing, run in backwards.made.items():
            *_, templates, alone = construction_of(run).arguments
            made.append([list(missing), self.write(tuple(templates)), self.write(alone)])
        parts = (graphs.backward, graphs.source, graphs.tangents, graphs.predicates)
        return {"$": "backwards", "text": stored_text(parts), "made": made}
