"""Builds the backwards of a sized joint graph, for each set of missing tangents and all sizes.

Input: the backward graph of a Partition with Sizes, and the predicates on its symbols. Output: for
each set of missing tangents an executable that is looked up by sizes (`by_sizes`): templates where
kernels can serve all sizes, else one executable for each size tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from torch.fx import GraphModule

from ..autograd.backward_graphs import backward_without
from ..construction import StoredBy, construction_of, nothing
from ..devices import Target
from ..graph.symbolic.concrete import graph_at
from ..late import collector_paused, late_names
from ..lazy_dataclass import dataclass
from ..options import Options
from ..records import Recording
from ..runtime.native import SIZES_KEPT, BySizes, add_alone, add_template, by_sizes
from ..symbols.expr import Expr
from ..torch_types import Executable

if TYPE_CHECKING:
    from ..symbols.predicates import Predicates, checks
    from .template import SizeTuple, Templates
else:
    late_names(globals(), {"compile.template": "Templates", "symbols.predicates": "checks"})

__all__ = ["BackwardAhead", "Builders", "SizedBackwards", "SizedGraphs"]

Missing = tuple[int, ...]


class Builders(NamedTuple):
    """Functions that build executables for a SizedJoint (`executable.builders_for_sizes`).

    `target` chooses the target of a graph. `graph` builds the executable of a concrete graph;
    its last argument says whether gradients are computed by or after it.
    `backward` calls its first argument to build a backward; if that fails, it replays the graph
    that the second returns. `warn_of_replay` warns that a backward runs op by op.
    """

    target: Callable[[GraphModule], Target]
    graph: Callable[[GraphModule, str, Recording, bool], Executable]
    backward: Callable[[Callable[[Recording], Executable], Callable[[], GraphModule]], Executable]
    warn_of_replay: Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class SizedGraphs:
    """The graphs behind a template, with Sizes of one Context: data for another process.

    backward: None without one     source: the torch-level graph, which a double backward runs
    """

    backward: GraphModule | None
    source: GraphModule
    tangents: int
    predicates: Predicates


class SizedBackwards(StoredBy):
    """Returns the executable for a set of missing tangents. `made`: those so far."""

    WRITER = "sized_backwards"

    def __init__(self, graphs: SizedGraphs, builders: Builders, options: Options) -> None:
        self.graphs = graphs
        self._builders, self._options = builders, options
        self.made: dict[Missing, BySizes] = {}
        self._building: dict[Missing, SizedBackward] = {}
        self.ahead: BackwardAhead | None = None  # the only reference to it
        self.on_change: Callable[[], None] = nothing  # called when an executable was made
        self._lock = RLock()

    def __call__(self, missing: Missing) -> BySizes:
        """Return the backward without these tangents, for each size tuple."""
        with self._lock, collector_paused():
            if missing not in self.made:
                build = self._building[missing] = self.builder(missing)
                self.made[missing] = known = by_sizes((), build.missed, SIZES_KEPT)
                build.run = known
                construction_of(known).on_change = self._changed
            return self.made[missing]

    def compile_at(self, values: SizeTuple) -> None:
        """Compile the backward with all tangents for these sizes, and if possible for all."""
        self(())
        self._building[()].missed(values)

    def _changed(self) -> None:
        self.on_change()  # which a file of the entry may have set meanwhile

    def builder(self, missing: Missing) -> SizedBackward:
        """Return what builds the backward without these tangents."""
        graph = self.graphs.backward
        assert graph is not None
        reduced = backward_without(graph, self.graphs.tangents, missing)
        return SizedBackward(reduced, self.graphs.predicates, self._builders, self._options)

    def source(self, values: SizeTuple) -> GraphModule:
        """Return the torch-level graph at these sizes."""
        return graph_at(self.graphs.source, _known(self.graphs.predicates, values))


class BackwardAhead:
    """The backward at the sizes of the first call: compiled now by those who do not wait for it.

    It is a Lazy (frame/ledger.py).
    """

    def __init__(self, backwards: SizedBackwards, values: SizeTuple) -> None:
        self._backwards, self._values = backwards, values

    @property
    def is_compiled(self) -> bool:
        """True once calls or this object have compiled it."""
        return () in self._backwards.made

    def __call__(self) -> None:
        """Compile it unless that has been done."""
        if not self.is_compiled:
            self._backwards.compile_at(self._values)


class SizedBackward:
    """Builds the executables of one backward graph, and adds them to `run`."""

    run: BySizes

    def __init__(
        self, graph: GraphModule, within: Predicates, builders: Builders, options: Options
    ) -> None:
        self._graph, self._within, self._builders = graph, within, builders
        target = builders.target(graph)
        self._templates = Templates(graph, "backward", within, target, options, True)
        self._lock = RLock()

    def missed(self, values: SizeTuple, _: object = None) -> Executable:
        """Return the executable of a size tuple that has none."""
        with self._lock:
            run = self._builders.backward(
                partial(self._build, values), partial(self._concrete, values)
            )
            if self._templates.known(values) is None:
                add_alone(self.run, values, run)
            else:
                self.run.add(values, run)
            return run

    def _build(self, values: SizeTuple, record: Recording) -> Executable:
        template = self._templates.template(values, record)
        if template is None:
            return self._builders.graph(self._concrete(values), "backward", record, True)
        add_template(self.run, checks((template.predicates,)), template.plan)
        return template.plan.at(values)

    def _concrete(self, values: SizeTuple) -> GraphModule:
        return graph_at(self._graph, _known(self._within, values))


def _known(predicates: Predicates, values: SizeTuple) -> dict[Expr, int]:
    return dict(zip(predicates.symbols, values, strict=True))
