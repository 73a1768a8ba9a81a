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
from ..errors import UserLine
from ..graph.node_meta import lines_of
from ..graph.propagate import call_name
from ..loops.ir import Extern, Nest
from ..options import Options
from ..records import CompileRecord
from ..runtime.examples import examples
from ..runtime.steps import timed_calls
from ..target import find_target, weaker_target
from .builds import (
    Build,
    MeasuredFrame,
    MeasuredPart,
    has_backward,
    inputs_of,
    newest_variants,
    nodes_of,
)
from .laps import Laps, laps_of_graph, laps_of_plan, made_up, operations, quiet

__all__ = ["Costs", "KernelCost", "LineCost", "Place", "costs_of"]

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


def costs_of(records: Iterable[CompileRecord], options: Options) -> Costs:
    """Measure the newest variant of each frame."""
    ledger = _Costs(options)
    for frame in newest_variants(records):
        ledger.add_frame(frame)
    return ledger.finished()


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
                measured = [self._measured(part) for part in frame.parts]
        except Exception as error:  # made-up tensors do not suit every graph: an index, a check
            self.notes.append(f"{name}: lines have no times: {type(error).__name__}: {error}")
            return
        for part, (eager, compiled) in zip(frame.parts, measured, strict=True):
            self._add(part, eager, compiled)

    def _measured(self, part: MeasuredPart) -> tuple[Laps, list[Laps]]:
        """Of the one as eager, and of its executables."""
        specs = [entry.spec for entry in part.traced.inputs]
        eager = laps_of_graph(part.traced.graph, specs, has_backward(part.builds))
        return eager, _laps_of(part, self.options) if part.builds else []

    def _add(self, part: MeasuredPart, eager: Laps, compiled: list[Laps]) -> None:
        weights = self._add_eager(part.traced.graph, eager)
        for build, laps in zip(part.builds, compiled, strict=True):
            lines = {name: lines_of(node) for name, node in nodes_of(build).items()}
            self._add_compiled(build, laps, lines, weights)
        if not part.builds:
            self._add_uncompiled(part.traced.graph, eager)

    def _add_uncompiled(self, gm: torch.fx.GraphModule, laps: Laps) -> None:
        """Calls whose results are as large as data say run as eager runs them."""
        self.compiled += laps.whole
        for node, seconds in zip(operations(gm.graph), laps.each, strict=True):
            label, stack = f"as eager: {call_name(node.target)}", lines_of(node)
            for cost in self._of(stack):
                cost.compiled += seconds
                cost.kernels[label] = cost.kernels.get(label, 0.0) + seconds
            places = tuple(dict.fromkeys(map(place_of, stack)))
            self.kernels.append(KernelCost(label, seconds, places, "", ()))

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


def _laps_of(part: MeasuredPart, options: Options) -> list[Laps]:
    """Of a forward and its backward, which reads what the forward saved: a library's workspace
    (that of a recurrent layer, say) cannot be made up.
    """
    forward, *backwards = part.builds
    split = forward.part
    assert split is not None
    inputs = [made_up(spec) for spec in inputs_of(split.forward)]
    laps, results = _laps_of_plan(forward, options, inputs)
    all_laps = [laps]
    for build in backwards:
        assert split.backward is not None
        saved = _saved(split, inputs, results)
        tangents = examples(inputs_of(split.backward)[len(saved) :])
        all_laps.append(_laps_of_plan(build, options, [*saved, *tangents])[0])
    return all_laps


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
