"""cost: what each line of the user's takes, eager and compiled, and the kernel that owns it.

Comes in: the records of what a function has compiled. Goes out: `Costs`, plain data. Each graph in
use is run on made-up tensors of its inputs' shapes, op by op and as the compiled plan, forward and
backward (laps.py); nothing of the user's runs again. An operation's time counts for the lines that
its node carries: where it stands, and those from which that was called. The time of a kernel of
several lines is divided among them as their times in eager are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..autograd.result import Partition
from ..codegen.plan import KernelSource, Plan
from ..errors import UserLine
from ..graph.foreign import is_foreign
from ..graph.node_meta import lines_of
from ..loops.ir import Extern, Nest
from ..options import Options
from ..records import Compiled, CompileRecord
from ..runtime.examples import examples
from ..runtime.steps import timed_calls
from ..schedule.result import Schedule
from ..spec import TensorSpec
from ..target import find_target, weaker_target
from ..trace.concrete import at_sizes, hints_of, places_of
from ..trace.result import Trace
from .laps import Laps, laps_of_graph, laps_of_plan, operations, quiet

__all__ = [
    "Build",
    "Costs",
    "KernelCost",
    "LineCost",
    "MeasuredFrame",
    "Place",
    "at_hints",
    "builds_in_use",
    "builds_of",
    "costs_of",
    "graphs_of",
    "newest_variants",
    "nodes_of",
    "partitions_of",
]

MOST_BYTES = 1 << 31  # of made-up inputs
Lines = tuple[UserLine, ...]  # innermost first, as nodes carry them
Place = tuple[str, int]  # file and number: a comprehension's line is its function's too


def place_of(line: UserLine) -> Place:
    return line.filename, line.lineno


@dataclass(slots=True)
class LineCost:
    """Seconds of one call of each graph that a line takes part in."""

    eager: float = 0.0
    compiled: float = 0.0
    kernels: dict[str, float] = field(default_factory=dict)  # by label, what of them is the line's

    @property
    def owner(self) -> str:
        """The kernel or ATen call with the most of its time."""
        return max(self.kernels, key=lambda label: self.kernels[label], default="")


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One launch or ATen call of a plan."""

    label: str  # "forward: mul_add_relu_0"
    seconds: float
    places: tuple[Place, ...]  # the lines that take part in it
    text: str  # generated code; "" of an ATen call
    decisions: tuple[str, ...]  # fusions made and refused


@dataclass(frozen=True)
class Costs:
    """eager, compiled: seconds of all graphs, each run once, measured without a clock inside."""

    lines: Mapping[Place, LineCost] = field(default_factory=dict)
    kernels: tuple[KernelCost, ...] = ()
    eager: float = 0.0
    compiled: float = 0.0
    unattributed: LineCost = field(default_factory=LineCost)  # operations without a line
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines)

    def shares(self, place: Place) -> tuple[float, float]:
        """A line's parts of the whole, eager and compiled, from 0 to 1."""
        known = self.lines.get(place)
        if known is None:
            return 0.0, 0.0
        return known.eager / (self.eager or 1.0), known.compiled / (self.compiled or 1.0)


@dataclass(frozen=True, slots=True)
class Build:
    """One executable of a compile."""

    name: str  # "forward", "backward"
    schedule: Schedule
    plan: Plan
    source: KernelSource | None


def builds_of(record: CompileRecord) -> list[Build]:
    """What a compile loaded; tiers that failed are left out."""
    builds: list[Build] = []
    schedule, rendered = None, None
    for stage in record.stages:
        name, _, kind = stage.stage.partition(": ")
        if kind == "schedule":
            schedule = stage.result
        elif kind == "render":
            rendered = stage.result
        elif kind == "load" and stage.result is not None and schedule and rendered:
            builds.append(Build(name, schedule, *rendered))
            schedule, rendered = None, None
    return builds


def builds_in_use(records: Iterable[CompileRecord]) -> list[Build]:
    """Of one variant: where it is compiled for several sizes, for those of the first call."""
    each = [builds for record in records if (builds := builds_of(record))]
    forwards = [build for build in (each[0] if each else []) if build.name != "backward"]
    backwards = [build for builds in each for build in builds if build.name == "backward"]
    return forwards + backwards[: len(forwards)]


@dataclass(frozen=True, slots=True)
class MeasuredFrame:
    """What is run again to measure a frame: its newest variant, of newest_variants."""

    traced: Trace
    builds: list[Build]
    parts: list[Partition]

    @classmethod
    def of(cls, records: Sequence[CompileRecord]) -> MeasuredFrame | None:
        """None where it computes nothing."""
        traced = records[0].result("trace")
        if not isinstance(traced, Trace) or not operations(traced.graph.graph):
            return None
        return cls(traced, builds_in_use(records), partitions_of(records[0]))

    @property
    def why_not(self) -> str:
        """Why it cannot be run on made-up tensors; empty where it can."""
        if not self.builds:
            return "what the backend made of it has no plan to be timed"
        if len([build for build in self.builds if build.name != "backward"]) > 1:
            return "its graph is split, and what one part gives the next cannot be made up"
        if any(is_foreign(node.target) for node in self.traced.graph.graph.nodes):
            return "it calls operators of yours, which run only when you call them"
        specs = [spec for part in self.parts for gm in graphs_of(part) for spec in _inputs_of(gm)]
        if sum(spec.nbytes for spec in specs) > MOST_BYTES:
            return f"its inputs take more than {MOST_BYTES >> 30} GiB"
        return ""

    @property
    def has_backward(self) -> bool:
        """Whether a backward is compiled."""
        return any(build.name == "backward" for build in self.builds)


def at_hints(traced: Trace) -> Trace:
    """The trace, with the sizes of the first call in place of symbols. Raises CompileFailed."""
    return at_sizes(traced, hints_of(traced))[0] if places_of(traced) else traced


def costs_of(records: Iterable[CompileRecord], options: Options) -> Costs:
    """Measure the newest variant of each frame."""
    ledger = _Costs(options)
    for frame in newest_variants(records):
        ledger.add_frame(frame)
    return ledger.finished()


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


class _Costs:
    """Costs while they are added up."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.lines: dict[Place, LineCost] = {}
        self.kernels: list[KernelCost] = []
        self.notes: list[str] = []
        self.without_line = LineCost()
        self.eager = self.compiled = 0.0

    def finished(self) -> Costs:
        """The sums so far."""
        if not self.lines:
            return Costs(notes=tuple(dict.fromkeys(self.notes)))
        return Costs(
            self.lines,
            tuple(self.kernels),
            self.eager,
            self.compiled,
            self.without_line,
            tuple(dict.fromkeys(self.notes)),
        )

    def add_frame(self, records: list[CompileRecord]) -> None:
        """The graph of a frame, and its backward once that is compiled."""
        frame = MeasuredFrame.of(records)
        if frame is None:
            return
        name = frame.traced.name
        if why := frame.why_not:
            self.notes.append(f"{name}: lines have no times: {why}")
            return
        try:
            with quiet():
                self._measure(frame)
        except Exception as error:  # made-up tensors do not suit every graph: an index, a check
            self.notes.append(f"{name}: lines have no times: {type(error).__name__}: {error}")

    def _measure(self, frame: MeasuredFrame) -> None:
        traced, builds, parts = at_hints(frame.traced), frame.builds, frame.parts
        specs = [entry.spec for entry in traced.inputs]
        eager = laps_of_graph(traced.graph, specs, frame.has_backward)
        compiled = _laps_of(builds, parts[0], self.options)  # of all, or nothing is added
        weights = self._add_eager(traced.graph, eager)
        for build, laps in zip(builds, compiled, strict=True):
            lines = {name: lines_of(node) for name, node in nodes_of(build, parts).items()}
            self._add_compiled(build, laps, lines, weights)

    def _add_eager(self, gm: torch.fx.GraphModule, laps: Laps) -> dict[Lines, float]:
        """The times by what led to the operations."""
        self.eager += laps.whole
        seconds_of: dict[Lines, float] = {}
        for node, seconds in zip(operations(gm.graph), laps.each, strict=True):
            stack = lines_of(node)
            seconds_of[stack] = seconds_of.get(stack, 0.0) + seconds
            for cost in self._of(stack):
                cost.eager += seconds
        return seconds_of

    def _add_compiled(
        self,
        build: Build,
        laps: Laps,
        lines: Mapping[str, Lines],
        weights: Mapping[Lines, float],
    ) -> None:
        self.compiled += laps.whole
        steps = [s for s in build.schedule.program.steps if isinstance(s, Nest | Extern)]
        calls, texts = timed_calls(build.plan), _texts(build)
        for step, call, seconds in zip(steps, calls, laps.each, strict=True):
            origins = step.origins if isinstance(step, Nest) else (step.name,)
            label = f"{build.name}: {step.name if isinstance(step, Nest) else step.op}"
            stacks = dict.fromkeys(stack_of for name in origins if (stack_of := lines.get(name)))
            for stack, part in _divided(list(stacks) or [()], weights):
                for cost in self._of(stack):
                    cost.compiled += seconds * part
                    cost.kernels[label] = cost.kernels.get(label, 0.0) + seconds * part
            places = tuple(dict.fromkeys(place_of(line) for stack in stacks for line in stack))
            text = texts.get(getattr(call, "kernel", ""), "")
            self.kernels.append(
                KernelCost(label, seconds, places, text, _decisions(build, origins))
            )

    def _of(self, stack: Lines) -> Iterator[LineCost]:
        """An operation counts once for each line that led to it."""
        for place in dict.fromkeys(map(place_of, stack)):
            yield self.lines.setdefault(place, LineCost())
        if not stack:
            yield self.without_line


def _divided(stacks: list[Lines], weights: Mapping[Lines, float]) -> Iterator[tuple[Lines, float]]:
    """Each line's part of a kernel; equal parts where eager took no time for any of them."""
    known = [weights.get(stack, 0.0) for stack in stacks]
    total = sum(known)
    for stack, weight in zip(stacks, known, strict=True):
        yield stack, weight / total if total else 1 / len(stacks)


def _laps_of(builds: list[Build], parts: Partition, options: Options) -> list[Laps]:
    """Of a forward and its backward, which reads what the forward saved: a library's workspace
    (that of a recurrent layer, say) cannot be made up.
    """
    forward, *backwards = builds
    inputs = examples(_inputs_of(parts.forward))
    laps, results = _laps_of_plan(forward, options, inputs)
    all_laps = [laps]
    for build in backwards:
        assert parts.backward is not None
        saved = _saved(parts, inputs, results)
        tangents = examples(_inputs_of(parts.backward)[len(saved) :])
        all_laps.append(_laps_of_plan(build, options, [*saved, *tangents])[0])
    return all_laps


def _inputs_of(gm: torch.fx.GraphModule) -> list[TensorSpec]:
    return [node.meta["spec"] for node in gm.graph.nodes if node.op == "placeholder"]


def graphs_of(parts: Partition) -> list[torch.fx.GraphModule]:
    """The ATen graphs, forward first."""
    return [gm for gm in (parts.forward, parts.backward) if gm is not None]


def _saved(
    parts: Partition, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What a forward keeps for its backward."""
    intermediates = results[parts.results : parts.results + parts.saved_intermediates]
    kept = [inputs[index] for index in parts.saved_inputs]
    return [*kept, *(results[index] for index in parts.saved_results), *intermediates]


def _laps_of_plan(
    build: Build, options: Options, inputs: Sequence[torch.Tensor]
) -> tuple[Laps, tuple[torch.Tensor, ...]]:
    target = find_target(build.schedule.program.device, options)
    while build.source is not None and target.tier not in (build.source.language, "aten"):
        target = weaker_target(target, options)
    plain = replace(options, cuda_graphs=False)
    return laps_of_plan(build.plan, build.source, target, plain, inputs)


def partitions_of(record: CompileRecord) -> list[Partition]:
    """One for each graph that was differentiated or not: several where a graph was split."""
    return [stage.result for stage in record.stages if isinstance(stage.result, Partition)]


def nodes_of(build: Build, parts: Iterable[Partition]) -> dict[str, torch.fx.Node]:
    """The ATen nodes that its kernels name as their origins. Each direction has its own: what the
    backward reads of the forward is an input of the same name there.
    """
    is_backward = build.name == "backward"
    graphs = [part.backward if is_backward else part.forward for part in parts]
    nodes = [node for gm in graphs if gm is not None for node in gm.graph.nodes]
    return {node.name: node for node in nodes if node.op not in ("placeholder", "output")}


def _texts(build: Build) -> dict[str, str]:
    """Generated code by kernel: the translation unit that it stands in."""
    source = build.source
    if source is None:
        return {}
    alone = {name: unit.text for unit in source.units for name in unit.symbols}
    return {name: alone.get(name, source.text) for name in source.symbols}


def _decisions(build: Build, origins: tuple[str, ...]) -> tuple[str, ...]:
    own = set(origins)
    return tuple(str(d) for d in build.schedule.decisions if {d.producer, d.consumer} & own)
