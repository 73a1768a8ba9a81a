"""Builds the backwards of a sized joint graph, for each set of missing tangents and all sizes.

Input: the backward graph of a Partition with Sizes, and the predicates on its symbols. Output: for
each set of missing tangents an executable that is looked up by sizes (`by_sizes`): templates where
kernels can serve all sizes, else one executable for each size tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from torch.fx import GraphModule

from ..autograd.backward_graphs import backward_without
from ..autograd.nodes import placeholders
from ..autograd.stages import split_stages
from ..construction import StoredBy, construction_of, nothing
from ..devices import Target
from ..graph.symbolic.concrete import graph_at
from ..late import collector_paused, late_names
from ..lazy_dataclass import dataclass
from ..options import Options
from ..records import Recording
from ..runtime.native import (
    SIZES_KEPT,
    BySizes,
    SizeTemplate,
    Step,
    add_alone,
    add_template,
    by_sizes,
    split_template,
)
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
    """Builds the executables of one backward graph, and adds them to `run`. Each stage of the graph
    has templates of its own.
    """

    run: BySizes

    def __init__(
        self, graph: GraphModule, within: Predicates, builders: Builders, options: Options
    ) -> None:
        self._graph, self._within, self._builders = graph, within, builders
        self._split = split_stages(graph)
        stages = [graph] if self._split is None else [one.graph for one in self._split.subgraphs]
        self._templates = [
            Templates(stage, "backward", within, builders.target(stage), options, True)
            for stage in stages
        ]
        self._lock = RLock()

    def missed(self, values: SizeTuple, _: object = None) -> Executable:
        """Return the executable of a size tuple that has none."""
        with self._lock:
            run = self._builders.backward(
                partial(self._build, values), partial(self._concrete, self._graph, values)
            )
            if any(stage.known(values) is None for stage in self._templates):
                add_alone(self.run, values, run)
            else:
                self.run.add(values, run)
            return run

    def _build(self, values: SizeTuple, record: Recording) -> Executable:
        templates = [stage.template(values, record) for stage in self._templates]
        runs = [
            self._alone(stage, values, record) if template is None else template.plan
            for stage, template in zip(self._templates, templates, strict=True)
        ]
        whole = self._assembled(runs)
        there = [template.predicates for template in templates if template is not None]
        if not isinstance(whole, SizeTemplate):
            return whole
        if len(there) == len(templates):
            add_template(self.run, checks(tuple(there)), whole)
        return whole.at(values)

    def _alone(self, stage: Templates, values: SizeTuple, record: Recording) -> Executable:
        """Build a stage for one size tuple, for which there can be no template."""
        return self._builders.graph(self._concrete(stage.graph, values), "backward", record, True)

    def _assembled(self, runs: Sequence[SizeTemplate | Executable]) -> SizeTemplate | Executable:
        if self._split is None:
            return runs[0]
        steps = [
            Step(run, *one.slots) for run, one in zip(runs, self._split.subgraphs, strict=True)
        ]
        inputs = len(placeholders(self._graph))
        return split_template(inputs, steps, self._split.outputs, (), self._within.symbols)

    def _concrete(self, graph: GraphModule, values: SizeTuple) -> GraphModule:
        return graph_at(graph, _known(self._within, values))


def _known(predicates: Predicates, values: SizeTuple) -> dict[Expr, int]:
    return dict(zip(predicates.symbols, values, strict=True))
