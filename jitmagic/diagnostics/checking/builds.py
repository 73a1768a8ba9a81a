"""builds: the executables of a compile, and the parts of a frame that can be run again.

Comes in: compile records. Goes out: a `Build` for each executable, with the graphs that it was
made of, and for each part of a frame the traced graph at the sizes it was built for. A frame is one
part, or several where its results are computed from one another (subgraphs.py) or data decide
sizes (data_split.py): what is done there is done here again, as a record holds stages, no slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch.fx import GraphModule, Node

from ...autograd.result import Partition
from ...codegen.plan import KernelSource, Plan
from ...compile.data_partitions import results_of, trace_of
from ...errors import CompileFailed
from ...graph.operators.foreign import is_foreign
from ...graph.subgraphs import Subgraph, split_if_possible
from ...graph.symbolic.data_split import split_at_data
from ...loops.ir import Extern, Nest
from ...records import Compiled, CompileRecord
from ...schedule.result import Schedule
from ...spec import TensorSpec
from ...trace.result import NOWHERE, GraphInput, Trace
from ...trace.varying.concrete import at_sizes, hints_of, places_of, with_hints
from ..explanation.line_timing import operations

__all__ = [
    "Build",
    "MeasuredFrame",
    "MeasuredPart",
    "at_hints",
    "builds_in_use",
    "builds_of",
    "graphs_of",
    "has_backward",
    "inputs_of",
    "newest_variants",
    "nodes_of",
    "partitions_of",
]

MOST_BYTES = 1 << 31  # of made-up inputs


@dataclass(frozen=True, slots=True)
class Build:
    """One executable of a compile; `part`: the graphs that it and its other direction are of."""

    name: str  # "forward", "backward"
    schedule: Schedule
    plan: Plan
    source: KernelSource | None
    part: Partition | None = None

    @property
    def is_backward(self) -> bool:
        return self.name == "backward"


def builds_of(records: Iterable[CompileRecord]) -> list[Build]:
    """What the compiles of one variant loaded; tiers that failed are left out."""
    builds: list[Build] = []
    split: list[Partition] = []  # no executable of theirs has been met
    differentiated: list[Partition] = []  # nor of their backwards
    for record in records:
        for stage in _loads_and_partitions(record):
            if isinstance(stage, Partition):
                split.append(stage)
                if stage.backward is not None:
                    differentiated.append(stage)
            elif stage.is_backward:
                builds.append(replace(stage, part=_with_backward(differentiated, stage)))
            else:
                builds.append(replace(stage, part=split.pop(0) if split else None))
    return builds


def _loads_and_partitions(record: CompileRecord) -> Iterator[Build | Partition]:
    schedule, rendered = None, None
    for stage in record.stages:
        name, _, kind = stage.stage.partition(": ")
        if isinstance(stage.result, Partition):
            yield stage.result
        elif kind == "schedule":
            schedule = stage.result
        elif kind == "render":
            rendered = stage.result
        elif kind == "load" and stage.result is not None and schedule and rendered:
            yield Build(name, schedule, *rendered)
            schedule, rendered = None, None


def _with_backward(differentiated: list[Partition], build: Build) -> Partition | None:
    """The one whose backward it is. They run, and are compiled, in the reverse order; those of
    other sizes have the graphs of the first.
    """
    steps = [s for s in build.schedule.program.steps if isinstance(s, Nest | Extern)]
    own = {n for s in steps for n in (s.origins if isinstance(s, Nest) else (s.name,))}
    fitting = [part for part in differentiated if own <= _names(part.backward)]
    if not fitting:
        return None
    if len(fitting) > 1:
        differentiated.remove(fitting[-1])
    return fitting[-1]


def _names(gm: GraphModule | None) -> set[str]:
    return set() if gm is None else {node.name for node in gm.graph.nodes}


def builds_in_use(records: Sequence[CompileRecord]) -> list[Build]:
    """Of one variant: where it is compiled for several sizes, for those of the first call."""
    builds = builds_of(records)
    first = len(builds_of(records[:1]))
    forwards = [build for build in builds[:first] if not build.is_backward]
    backwards = [build for build in builds if build.is_backward]
    return forwards + backwards[: len(forwards)]


def partitions_of(record: CompileRecord) -> list[Partition]:
    """One for each graph that was differentiated or not: several where a graph was split."""
    return [stage.result for stage in record.stages if isinstance(stage.result, Partition)]


def graphs_of(parts: Partition) -> list[GraphModule]:
    """The ATen graphs, forward first."""
    return [gm for gm in (parts.forward, parts.backward) if gm is not None]


def inputs_of(gm: GraphModule) -> list[TensorSpec]:
    """What an ATen graph takes."""
    return [node.meta["spec"] for node in gm.graph.nodes if node.op == "placeholder"]


def nodes_of(build: Build) -> dict[str, Node]:
    """The ATen nodes that its kernels name as their origins. Each direction has its own: what the
    backward reads of the forward is an input of the same name there.
    """
    if build.part is None:
        return {}
    gm = build.part.backward if build.is_backward else build.part.forward
    nodes: list[Node] = [] if gm is None else list(gm.graph.nodes)
    return {node.name: node for node in nodes if node.op not in ("placeholder", "output")}


def has_backward(builds: Iterable[Build]) -> bool:
    """Whether one is compiled."""
    return any(build.is_backward for build in builds)


def newest_variants(records: Iterable[CompileRecord]) -> list[list[CompileRecord]]:
    """Of each frame what was compiled for its newest variant: the graph first, then its backward
    and other sizes.
    """
    newest: dict[int, list[CompileRecord]] = {}
    for record in records:
        if isinstance(record.outcome, Compiled):
            known = newest.setdefault(record.frame, [record])
            if known[0].number < record.number:
                newest[record.frame] = [record]
            elif known[0].number == record.number and record is not known[0]:
                known.append(record)
    return list(newest.values())


# ------------------------------------------------------------------------------ frames, run again


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """A traced graph of fixed sizes, and its executables: the forward, and the backward once that
    is compiled; none where it runs as eager does.
    """

    traced: Trace
    builds: tuple[Build, ...]


@dataclass(frozen=True, slots=True)
class MeasuredFrame:
    """What is run again to measure a frame: its newest variant, of newest_variants."""

    traced: Trace
    builds: list[Build]

    @classmethod
    def of(cls, records: Sequence[CompileRecord]) -> MeasuredFrame | None:
        """None where it computes nothing."""
        traced = records[0].result("trace")
        if not isinstance(traced, Trace) or not operations(traced.graph.graph):
            return None
        return cls(traced, builds_in_use(records))

    @property
    def why_not(self) -> str:
        """Why it cannot be run on made-up tensors; empty where it can."""
        if not self.builds:
            return "what the backend made of it has no plan to be timed"
        if any(is_foreign(node.target) for node in self.traced.graph.graph.nodes):
            return "it calls operators of yours, which run only when you call them"
        graphs = [gm for build in self.builds if build.part for gm in graphs_of(build.part)]
        if sum(spec.nbytes for gm in graphs for spec in inputs_of(gm)) > MOST_BYTES:
            return f"its inputs take more than {MOST_BYTES >> 30} GiB"
        return ""

    @property
    def parts(self) -> list[MeasuredPart]:
        """In order. Raises CompileFailed where it cannot be told which executable is of which."""
        made: list[MeasuredPart] = []
        forwards = iter(build for build in self.builds if not build.is_backward)
        for traced, data_dependent in _parts_of(self.traced):
            forward = None if data_dependent else next(forwards, None)
            if forward is None and not data_dependent:
                raise CompileFailed("a part of its graph has no executable for these sizes")
            backwards = [b for b in self.builds if b.is_backward and b.part is _part(forward)]
            made.append(MeasuredPart(traced, (*([forward] if forward else []), *backwards[:1])))
        return made


def _part(build: Build | None) -> Partition | object:
    return object() if build is None else build.part


def _parts_of(traced: Trace) -> Iterator[tuple[Trace, bool]]:
    """With whether data decide how large its results are."""
    pieces = split_at_data(traced.graph)
    if pieces is None:
        for part in _subgraphs_of(at_hints(traced), None):
            yield part, False
        return
    specs = [entry.spec for entry in traced.inputs]
    for piece in pieces.partitions:
        own = trace_of(traced, piece, [specs[slot] for slot in piece.part.inputs])
        specs += results_of(own)
        if piece.data_dependent:
            yield with_hints(own), True
            continue
        for part in _subgraphs_of(at_hints(own), piece.asked):
            yield part, False


def _subgraphs_of(traced: Trace, asked: frozenset[int] | None) -> list[Trace]:
    split = split_if_possible(traced.graph, asked)
    if split is None:
        return [traced]
    parts: list[Trace] = []

    def gives(subgraph: Subgraph, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        inputs = tuple(GraphInput("between subgraphs", NOWHERE, spec) for spec in taken)
        parts.append(replace(traced, graph=subgraph.graph, inputs=inputs, mutated=()))
        return results_of(parts[-1])

    split.follow([entry.spec for entry in traced.inputs], gives)
    return parts


def at_hints(traced: Trace) -> Trace:
    """The trace, with the sizes of the first call in place of symbols. Raises CompileFailed."""
    return at_sizes(traced, hints_of(traced))[0] if places_of(traced) else traced
