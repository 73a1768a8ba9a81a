"""cost: measures the seconds of each source line, eager and compiled, and its kernels.

Input: the compile records of a function. Output: `Costs`, plain data. Each graph in use is run on
synthetic tensors of its inputs' shapes, operation by operation as eager and as the compiled plan,
forward and backward (line_timing.py); user code does not run again. An operation's time counts for
its own line and for the lines that called it. The time of a kernel with several lines is divided
among them in proportion to their time in eager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ...autograd.result import Partition
from ...devices import find_target, weaker_target
from ...errors import ModulePath, UserLine
from ...graph.node_meta import lines_of
from ...graph.target_names import target_name
from ...graph.targets.control_flow import control_flow_in
from ...lazy_dataclass import dataclass, field, replace
from ...options import Options
from ...records import CompileRecord
from ...runtime.examples import examples
from ..builds import (
    Build,
    MeasuredFrame,
    MeasuredPart,
    has_backward,
    inputs_of,
    newest_variants,
    nodes_of,
    operations_of,
)
from .kernels import KernelReport, kernels_of
from .limits import copy_seconds
from .line_timing import OperationTimes, isolated, synthetic, time_graph, time_plan

__all__ = ["Costs", "KernelCost", "LineCost", "ModuleCost", "Place", "costs_of"]

Lines = tuple[UserLine, ...]  # innermost first, as in node.meta["lines"]
Place = tuple[str, int]  # file and line number, so a comprehension shares its function's line
Stack = tuple[Lines, ModulePath | None]  # with the module, which equality of lines ignores


def place_of(line: UserLine) -> Place:
    return line.filename, line.lineno


def _stack_of(lines: Lines) -> Stack:
    return lines, lines[0].module if lines else None


@dataclass(slots=True)
class LineCost:
    """Holds the seconds of a line, if every graph runs once."""

    eager: float = 0.0
    compiled: float = 0.0
    kernels: dict[int, float] = field(default_factory=dict)  # seconds by number of the kernel
    is_own: bool = False  # false: all of the time is spent in functions that the line calls


@dataclass(slots=True)
class ModuleCost:
    """Seconds of one module without its submodules, and its lines."""

    module: ModulePath
    eager: float = 0.0
    compiled: float = 0.0
    places: dict[Place, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One launch or ATen call of a plan.

    limit: its speed relative to a copy of the same bytes; None if it is not bound by memory
    """

    kernel: KernelReport
    seconds: float
    places: tuple[Place, ...]  # the lines that it computes
    decisions: tuple[str, ...] = ()  # fusions made and refused
    limit: float | None = None

    @property
    def label(self) -> str:
        """`forward: mul_add_relu_0`."""
        return f"{self.kernel.graph}: {self.kernel.name}"


@dataclass(frozen=True)
class Costs:
    """Holds all measurements; eager, compiled: seconds of all graphs, without the overhead of
    clocks.
    """

    lines: Mapping[Place, LineCost] = field(default_factory=dict)
    kernels: tuple[KernelCost, ...] = ()
    eager: float = 0.0
    compiled: float = 0.0
    unattributed: LineCost = field(default_factory=LineCost)  # operations without a line
    modules: tuple[ModuleCost, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines)


def costs_of(records: Iterable[CompileRecord], options: Options) -> Costs:
    """Measure the newest variant of each frame."""
    ledger = _Costs(options)
    for frame in newest_variants(records):
        ledger.add_frame(frame)
    return ledger.finished()


class _Costs:
    """Accumulates Costs frame by frame."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.lines: dict[Place, LineCost] = {}
        self.kernels: list[KernelCost] = []
        self.modules: dict[ModulePath, ModuleCost] = {}
        self.notes: list[str] = []
        self.without_line = LineCost()
        self.eager = self.compiled = 0.0

    def finished(self) -> Costs:
        """Return the accumulated costs."""
        if not self.lines:
            return Costs(notes=tuple(dict.fromkeys(self.notes)))
        return Costs(
            self.lines,
            tuple(self.kernels),
            self.eager,
            self.compiled,
            self.without_line,
            tuple(self.modules.values()),
            tuple(dict.fromkeys(self.notes)),
        )

    def add_frame(self, records: list[CompileRecord]) -> None:
        """Measure and add the newest variant of a frame, with its backward once compiled."""
        frame = MeasuredFrame.of(records)
        if frame is None:
            return
        name = frame.traced.name
        if why := frame.why_not:
            self.notes.append(f"{name}: lines have no times: {why}")
            return
        try:
            # The graphs that a control-flow node runs are parts too, each measured for one run.
            parts = [one for one in frame.parts if not any(control_flow_in(one.traced.graph))]
            with isolated():
                measured = [self._measured(part) for part in parts]
        except Exception as error:  # synthetic tensors are invalid for some graphs: indices, checks
            self.notes.append(f"{name}: lines have no times: {type(error).__name__}: {error}")
            return
        for part, (eager, compiled) in zip(parts, measured, strict=True):
            self._add(part, eager, compiled)
        if any(control_flow_in(frame.traced.graph)):
            self.notes.append(f"{name}: each branch and loop body is measured for one run")

    def _measured(self, part: MeasuredPart) -> tuple[OperationTimes, list[OperationTimes]]:
        """Return the times of a part as eager, and of each of its executables."""
        specs = [entry.spec for entry in part.traced.inputs]
        eager = time_graph(part.traced.graph, specs, has_backward(part.builds))
        return eager, _time_part(part, self.options) if part.builds else []

    def _add(
        self, part: MeasuredPart, eager: OperationTimes, compiled: list[OperationTimes]
    ) -> None:
        weights = self._add_eager(part.traced.graph, eager)
        for build, times in zip(part.builds, compiled, strict=True):
            self._add_compiled(build, times, weights)
        if not part.builds:
            self._add_uncompiled(part.traced.graph, eager)

    def _add_uncompiled(self, gm: torch.fx.GraphModule, times: OperationTimes) -> None:
        """Add a part that runs as eager, because its output shapes are data-dependent."""
        self.compiled += times.whole
        for node, seconds in zip(operations_of(gm.graph), times.each, strict=True):
            stack = _stack_of(lines_of(node))
            name = target_name(node.target)
            why = "its output shape is data-dependent: it runs as in eager"
            kernel = KernelReport(
                name, "as eager", "", (node.name,), "", stack[0][:1], operations=(name,), why=why
            )
            for cost in self._of(stack):
                cost.compiled += seconds
                if isinstance(cost, LineCost):
                    cost.kernels[len(self.kernels)] = seconds
            places = tuple(dict.fromkeys(map(place_of, stack[0])))
            self.kernels.append(KernelCost(kernel, seconds, places))

    def _add_eager(self, gm: torch.fx.GraphModule, times: OperationTimes) -> dict[Stack, float]:
        """Add eager times, and return them by call stack."""
        self.eager += times.whole
        seconds_of: dict[Stack, float] = {}
        for node, seconds in zip(operations_of(gm.graph), times.each, strict=True):
            stack = _stack_of(lines_of(node))
            seconds_of[stack] = seconds_of.get(stack, 0.0) + seconds
            for cost in self._of(stack):
                cost.eager += seconds
        return seconds_of

    def _add_compiled(
        self, build: Build, times: OperationTimes, weights: Mapping[Stack, float]
    ) -> None:
        self.compiled += times.whole
        stack_by_name = {name: _stack_of(lines_of(node)) for name, node in nodes_of(build).items()}
        device = build.schedule.program.device
        for kernel, seconds in zip(kernels_of(build), times.each, strict=True):
            found = (stack_by_name.get(name, ((), None)) for name in kernel.computes)
            stacks = list(dict.fromkeys(stack for stack in found if stack[0]))
            for stack, part in _divided(stacks or [((), None)], weights):
                for cost in self._of(stack):
                    cost.compiled += seconds * part
                    if isinstance(cost, LineCost):
                        number = len(self.kernels)
                        cost.kernels[number] = cost.kernels.get(number, 0.0) + seconds * part
            places = tuple(dict.fromkeys(place_of(line) for lines, _ in stacks for line in lines))
            decisions = _decisions(build, kernel.computes)
            limit = _limit(kernel, seconds, device)
            self.kernels.append(KernelCost(kernel, seconds, places, decisions, limit))

    def _of(self, stack: Stack) -> Iterator[LineCost | ModuleCost]:
        """Yield the entries that an operation counts for: the lines of its stack, its module."""
        lines, module = stack
        for place in dict.fromkeys(map(place_of, lines)):
            yield self.lines.setdefault(place, LineCost())
        if not lines:
            yield self.without_line
        for line in lines:
            if line.module is not None:
                known = self.modules.setdefault(line.module, ModuleCost(line.module))
                known.places[place_of(line)] = None
        if lines:
            self.lines[place_of(lines[0])].is_own = True
        if module is not None:
            yield self.modules[module]


def _limit(kernel: KernelReport, seconds: float, device: torch.device) -> float | None:
    """Return the speed of a memory-bound kernel relative to a copy of the same bytes, at most 1."""
    if not kernel.is_generated or kernel.is_arithmetic or seconds <= 0:
        return None
    copied = copy_seconds(kernel.nbytes, device)
    return None if copied is None else min(1.0, copied / seconds)


def _divided(stacks: list[Stack], weights: Mapping[Stack, float]) -> Iterator[tuple[Stack, float]]:
    """Yield each stack's share of a kernel: as in eager, or equal shares if eager took no time."""
    known = [weights.get(stack, 0.0) for stack in stacks]
    total = sum(known)
    for stack, weight in zip(stacks, known, strict=True):
        yield stack, weight / total if total else 1 / len(stacks)


def _time_part(part: MeasuredPart, options: Options) -> list[OperationTimes]:
    """Time a forward and its backward on the tensors that the forward saved.

    Saved tensors cannot be synthetic: some are a library's workspace, as in recurrent layers.
    """
    forward, *backwards = part.builds
    split = forward.part
    assert split is not None
    inputs = [synthetic(spec) for spec in inputs_of(split.forward)]
    times, results = _time_build(forward, options, inputs)
    all_times = [times]
    for build in backwards:
        assert split.backward is not None
        saved = _saved(split, inputs, results)
        tangents = examples(inputs_of(split.backward)[len(saved) :])
        all_times.append(_time_build(build, options, [*saved, *tangents])[0])
    return all_times


def _saved(
    parts: Partition, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the tensors that a forward saves for its backward."""
    intermediates = results[parts.results : parts.results + parts.saved_intermediates]
    kept = [inputs[index] for index in parts.saved_inputs]
    return [*kept, *(results[index] for index in parts.saved_results), *intermediates]


def _time_build(
    build: Build, options: Options, inputs: Sequence[torch.Tensor]
) -> tuple[OperationTimes, tuple[torch.Tensor, ...]]:
    target = find_target(build.schedule.program.device, options)
    while build.source is not None and target.tier not in (build.source.language, "aten"):
        target = weaker_target(target, options)
    plain = replace(options, cuda_graphs=False)
    return time_plan(build.plan, build.source, target, plain, inputs)


def _decisions(build: Build, origins: tuple[str, ...]) -> tuple[str, ...]:
    own = set(origins)
    return tuple(str(d) for d in build.schedule.decisions if {d.producer, d.consumer} & own)
