"""builds: lists the executables of a compile, and the parts of a frame that can be run again.

Input: compile records. Output: a `Build` for each executable with its ATen graphs, and for each
part of a frame the traced graph at the sizes of the first call. A frame has several parts if it was
split into subgraphs (graph/subgraphs.py) or at operators with data-dependent output shapes
(graph/symbolic/data_split.py). Records hold stages but not the splits, so the graph is split again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from torch.fx import Graph, GraphModule, Node

from ..autograd.nodes import node_spec, placeholders
from ..autograd.result import Partition
from ..codegen.plan import KernelSource, Plan
from ..compile.data_partitions import has_all_sizes, results_of, trace_of, trace_of_body
from ..errors import CompileFailed
from ..graph.operators.foreign import is_foreign
from ..graph.subgraphs import Subgraph, split_if_possible
from ..graph.symbolic.data_split import split_at_data
from ..graph.targets.control_flow import PLACES, control_flow_in
from ..lazy_dataclass import dataclass, field, replace
from ..loops.ir import Extern, Nest
from ..records import JOINS, Compiled, CompileRecord
from ..replacements import Replacement
from ..runtime.cuda_graphs.replayer import Replayer
from ..schedule.result import Schedule
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..trace.result import NOWHERE, GraphInput, Trace
from ..trace.varying.concrete import hints_of, places_of, with_hints, with_sizes

__all__ = [
    "Build",
    "MeasuredFrame",
    "MeasuredPart",
    "at_first_sizes",
    "bodies_of",
    "builds_in_use",
    "builds_of",
    "by_variant",
    "graphs_of",
    "has_backward",
    "inputs_of",
    "newest_variants",
    "nodes_of",
    "operations_of",
    "partitions_of",
    "parts_of",
]

MOST_BYTES = 1 << 31  # a limit on synthetic inputs
_CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Build:
    """Describes one executable of a compile; `part`: the forward and backward graphs it belongs
    to; `meanwhile`: what becomes of kernels that were interpreted at first; `replayers`: of its
    CUDA graphs; `added`: nodes that the graphs have not, as they pack small collectives.
    """

    name: str  # "forward", "backward"
    schedule: Schedule
    plan: Plan
    source: KernelSource | None
    part: Partition | None = None
    meanwhile: Replacement | None = None
    replayers: Collection[Replayer] = ()
    added: Mapping[str, Node] = field(default_factory=dict)

    @property
    def is_backward(self) -> bool:
        return self.name == "backward"


def builds_of(records: Iterable[CompileRecord]) -> list[Build]:
    """Return the executables that one variant loaded, without attempts of tiers that failed."""
    builds: list[Build] = []
    split: list[Partition] = []  # partitions whose forward has not been seen yet
    differentiated: list[Partition] = []  # partitions whose backward has not been seen yet
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
    schedule, plan, source = None, None, None
    added: Mapping[str, Node] = {}
    for stage in record.stages:
        name, _, kind = stage.stage.partition(": ")
        if isinstance(stage.result, Partition):
            yield stage.result
        elif kind == JOINS:
            added = stage.result.added
        elif kind == "schedule":
            schedule = stage.result
        elif kind == "render":
            plan, source = stage.result
        elif kind == "load" and stage.result is not None and schedule and plan:
            loaded = stage.result
            of_kernels = loaded.meanwhile, loaded.replayers
            yield Build(name, schedule, plan, source, None, *of_kernels, added)
            schedule, plan, added = None, None, {}


def _with_backward(differentiated: list[Partition], build: Build) -> Partition | None:
    """Return the partition of a backward, found by the names of its nodes.

    Backwards are compiled in reverse order, and those for further sizes share the first graphs.
    """
    steps = [s for s in build.schedule.program.steps if isinstance(s, Nest | Extern)]
    own = {n for s in steps for n in (s.origins if isinstance(s, Nest) else (s.name,))}
    own -= build.added.keys()
    fitting = [part for part in differentiated if own <= _names(part.backward)]
    if not fitting:
        return None
    # The smallest graph that has the names: a backward that only forwards gradients has none.
    found = min(reversed(fitting), key=lambda part: len(_names(part.backward)))
    if len(fitting) > 1:
        differentiated.remove(found)
    return found


def _names(gm: GraphModule | None) -> set[str]:
    return set() if gm is None else {node.name for node in gm.graph.nodes}


def builds_in_use(records: Sequence[CompileRecord]) -> list[Build]:
    """Return the executables of one variant for the sizes of its first call."""
    builds = builds_of(records)
    first = len(builds_of(records[:1]))
    forwards = [build for build in builds[:first] if not build.is_backward]
    backwards = [build for build in builds if build.is_backward]
    return forwards + backwards[: len(forwards)]


def partitions_of(record: CompileRecord) -> list[Partition]:
    """Return the partition of each graph; there are several if the traced graph was split."""
    return [stage.result for stage in record.stages if isinstance(stage.result, Partition)]


def graphs_of(parts: Partition) -> list[GraphModule]:
    """Return the ATen graphs, forward first."""
    return [gm for gm in (parts.forward, parts.backward) if gm is not None]


def inputs_of(gm: GraphModule) -> list[TensorSpec]:
    """Return the specs of the inputs of an ATen graph."""
    return [node_spec(node) for node in placeholders(gm)]


def nodes_of(build: Build) -> dict[str, Node]:
    """Return by name the ATen nodes that kernels of the executable have as origins.

    Only its own direction is searched, as saved tensors are inputs of the same name in the
    backward.
    """
    if build.part is None:
        return dict(build.added)
    gm = build.part.backward if build.is_backward else build.part.forward
    nodes: list[Node] = [] if gm is None else list(gm.graph.nodes)
    own = {node.name: node for node in nodes if node.op not in ("placeholder", "output")}
    return {**build.added, **own}


def has_backward(builds: Iterable[Build]) -> bool:
    """Return whether a backward is among the executables."""
    return any(build.is_backward for build in builds)


def by_variant(records: Iterable[CompileRecord]) -> dict[tuple[int, int], list[CompileRecord]]:
    """Return the records of each variant, by frame and number. Those of its backward, which is
    compiled later than its partition was made, come after that of the forward.
    """
    variants: dict[tuple[int, int], list[CompileRecord]] = {}
    for record in records:
        variants.setdefault((record.frame, record.number), []).append(record)
    return variants


def newest_variants(records: Iterable[CompileRecord]) -> list[list[CompileRecord]]:
    """Return for each frame the records of its newest variant.

    The record of the graph comes first, then those of its backward and of further sizes.
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
    """A traced graph of fixed sizes and its executables: forward, and backward once compiled.

    A part without executables runs as eager, because its output shapes are data-dependent.
    """

    traced: Trace
    builds: tuple[Build, ...]


@dataclass(frozen=True, slots=True)
class MeasuredFrame:
    """The newest variant of a frame, which is run again to measure the frame."""

    traced: Trace
    builds: list[Build]

    @classmethod
    def of(cls, records: Sequence[CompileRecord]) -> MeasuredFrame | None:
        """Return the frame of these records of one variant; None if its graph has no operations."""
        traced = records[0].result("trace")
        if not isinstance(traced, Trace) or not operations_of(traced.graph.graph):
            return None
        return cls(traced, builds_in_use(records))

    @property
    def why_not(self) -> str:
        """The reason why it cannot be run on synthetic tensors; "" if it can."""
        if not self.builds:
            return "code of another backend cannot be timed step by step"
        if any(is_foreign(node.target) for node in self.traced.graph.graph.nodes):
            return "it calls custom operators, which are not run for measurements"
        graphs = [gm for build in self.builds if build.part for gm in graphs_of(build.part)]
        if sum(spec.nbytes for gm in graphs for spec in inputs_of(gm)) > MOST_BYTES:
            return f"its inputs take more than {MOST_BYTES >> 30} GiB"
        return ""

    @property
    def parts(self) -> list[MeasuredPart]:
        """The parts in order, then those of branches and loop bodies. Raises CompileFailed if a
        part's executable cannot be identified.
        """
        found: list[MeasuredPart] = []
        forwards = iter(build for build in self.builds if not build.is_backward)
        bodies = ((traced, is_eager) for _, traced, is_eager in bodies_of(self.traced))
        for traced, is_eager in (*parts_of(self.traced), *bodies):
            forward = None if is_eager else next(forwards, None)
            if forward is None and not is_eager:
                raise CompileFailed("a part of its graph has no executable for these sizes")
            backwards = [b for b in self.builds if b.is_backward and b.part is _part(forward)]
            found.append(MeasuredPart(traced, (*([forward] if forward else []), *backwards[:1])))
        return found


def _part(build: Build | None) -> Partition | object:
    return object() if build is None else build.part


def parts_of(traced: Trace, asked: frozenset[int] | None = None) -> Iterator[tuple[Trace, bool]]:
    """Yield each part, and whether it runs in eager. `asked`: the indices of results that may be
    differentiated; None: all.
    """
    pieces = split_at_data(traced.graph)
    if pieces is None:
        for part in _subgraphs_of(at_first_sizes(traced), asked):
            yield part, False
        return
    specs = [entry.spec for entry in traced.inputs]
    for piece in pieces.partitions:
        own = trace_of(traced, piece, [specs[slot] for slot in piece.part.inputs])
        specs += results_of(own)
        if piece.data_dependent:
            yield with_hints(own), True
            continue
        for part in _subgraphs_of(at_first_sizes(own), piece.asked):
            yield part, False


def bodies_of(traced: Trace) -> Iterator[tuple[str, Trace, bool]]:
    """Yield the parts of the branches and loop bodies in a graph, in the order in which they are
    compiled, each with a name and whether it runs in eager.
    """
    eager = [part for part, is_eager in parts_of(traced) if is_eager]
    flows = [flow for part in eager for _, flow in control_flow_in(part.graph)]
    for flow in flows:
        for place, body in zip(PLACES[flow.kind], flow.bodies, strict=True):
            own = trace_of_body(traced, body)
            if not has_all_sizes(own):
                yield f"{flow.kind}.{place}", own, True
                continue
            for part, is_eager in parts_of(own, frozenset()):
                yield f"{flow.kind}.{place}", part, is_eager
            yield from bodies_of(own)


def _subgraphs_of(traced: Trace, asked: frozenset[int] | None) -> list[Trace]:
    split = split_if_possible(traced.graph, asked)
    if split is None:
        return [traced]
    parts: list[Trace] = []

    def results_at(subgraph: Subgraph, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        inputs = tuple(GraphInput("between subgraphs", NOWHERE, spec) for spec in taken)
        parts.append(replace(traced, graph=subgraph.graph, inputs=inputs, mutated=()))
        return results_of(parts[-1])

    split.follow([entry.spec for entry in traced.inputs], results_at)
    return parts


def at_first_sizes(traced: Trace) -> Trace:
    """Return the trace with the first call's sizes in place of symbols."""
    hints = dict[Expr, int](zip(places_of(traced), hints_of(traced), strict=True))
    return with_sizes(traced, hints)[0] if hints else traced


def operations_of(graph: Graph) -> list[Node]:
    """Return the nodes of a graph that are calls."""
    return [node for node in graph.nodes if node.op in _CALLS]
