"""One joint graph for all sizes: autograd's split and the kernels of a frame whose sizes differ.

Comes in: a Trace with Sizes, and the values of its symbols in one call. Goes out: a SizedJoint,
which makes the executable of other values that pass its predicates, with no graph traced.

joint and partition run once, on meta tensors with SymInts, as the trace did before them: what
autograd's formulas, decompositions and torch's C++ decide by a size is a comparison of Sizes, which
becomes a predicate; whoever reads one as an int raises Specialize, and the frame goes without. So
all that was decided is known to hold for values that pass. (The other way, to trace each vector and
compare the graph with the first one's, `sizes.py` takes where this one fails: of a transformer
layer's 32 ms per vector in training, 28 went into graphs that came out alike.) Which values the
backward saves is chosen for the hints: any cut is right. With `options.verify` each node of the
joint graph is compared with what its operation gives at the sizes of each vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, NamedTuple

from torch.fx import GraphModule

from .autograd.joint import trace_joint
from .autograd.partial import backward_without
from .autograd.partition import partition
from .autograd.result import Joint, Partition, output_specs
from .autograd.shell import Once, SizedShell
from .autograd.verify import verify_joint
from .errors import CompileFailed
from .graph.concrete import Filled, graph_at, results_of
from .graph.subgraphs import split_into_subgraphs
from .options import Options
from .records import Recording
from .runtime.native import split_graph
from .spec import TensorSpec
from .symbols.expr import Expr
from .symbols.interval import MANY, Interval
from .symbols.predicates import Predicates
from .symbols.scalar import Symbol
from .symbols.size import Size, hintless
from .target import Target
from .template import Template, compile_template
from .trace.concrete import of_sizes, ranges_of
from .trace.result import Trace

__all__ = ["Builders", "SizedJoint", "with_others"]

Executable = Callable[..., tuple[Any, ...]]
Vector = tuple[int, ...]
Missing = tuple[int, ...]
_COUNT = itertools.count()


class Builders(NamedTuple):
    """What `pipeline` builds with. `target` of a graph; `graph`: the executable of one of ints;
    `backward`: what its first argument builds, or a replay of the graph that the second gives;
    `tell`: that a backward is replayed.
    """

    target: Callable[[GraphModule], Target]
    graph: Callable[[GraphModule, str, Recording], Executable]
    backward: Callable[[Callable[[Recording], Executable], Callable[[], GraphModule]], Executable]
    tell: Callable[[], None]


class _Kernels:
    """The templates of one ATen graph, one after the other: predicates of schedules differ."""

    __slots__ = (
        *("_graph", "_is_sized", "_lock", "_made", "_name", "_options", "_symbols", "_target"),
        "compiled",
    )

    def __init__(
        self,
        graph: GraphModule,
        name: str,
        symbols: tuple[Symbol, ...],
        target: Target,
        options: Options,
    ) -> None:
        self._graph, self._name, self._symbols = graph, name, symbols
        self._target, self._options = target, options
        self._made: list[Template] = []
        self._lock = RLock()
        self._is_sized = True
        self.compiled = 0  # how often a compiler was asked, or has to be

    def known(self, values: Vector) -> Template | None:
        """The template for these values that there is."""
        return next((template for template in self._made if template.holds(values)), None)

    def executable(self, values: Vector, record: Recording) -> Executable | None:
        """None: there is no template for these values, and none can be made."""
        with self._lock:
            template = self.known(values)
            if template is None and self.compiled < self._options.recompile_limit:
                self.compiled += 1
                template = self._compile(values, record) if self._is_sized else None
        return None if template is None else template.instantiate(values)

    def _compile(self, values: Vector, record: Recording) -> Template | None:
        with record.stage(f"{self._name}: for all sizes") as stage:
            hints = dict(zip(self._symbols, values, strict=True))
            try:
                template = compile_template(
                    self._graph, self._name, hints, self._target, self._options, record
                )
            except Exception as error:  # a stage may not take Sizes: sizes of one call it does take
                stage.keep(f"only for {values}: {type(error).__name__}: {error}")
                self._is_sized = False
                return None
            stage.keep(str(template.predicates))
            self._made.append(template)
            return template if template.holds(values) else None


@dataclass(slots=True)
class _Part:
    """A subgraph of the frame: its graphs, and where its values come from and go to."""

    graph: GraphModule
    joint: Joint
    parts: Partition
    shell: SizedShell
    forward: _Kernels
    slots: tuple[tuple[int, ...], int, tuple[int, ...]]  # inputs, how many outputs, dead
    backwards: dict[Missing, tuple[GraphModule, _Kernels]] = field(default_factory=dict)


class SizedJoint:
    """What serves all values that `holds` is true of. Raises whatever a stage raises where a graph
    cannot be made for sizes: the caller goes without.
    """

    def __init__(
        self,
        traced: Trace,
        values: Vector,
        builders: Builders,
        options: Options,
        record: Recording,
    ) -> None:
        self._builders, self._options, self._hints = builders, options, values
        self._later = record.for_later()
        self._lock = RLock()
        ranges = ranges_of(traced)
        self._named = tuple(ranges)  # the symbols of the trace
        self.symbols = tuple(_own(symbol, interval) for symbol, interval in ranges.items())
        self.predicates = Predicates(dict(zip(self.symbols, values, strict=True)))
        sizes: dict[Expr, Any] = {
            symbol: Size(own, self.predicates.context)
            if own.range.low < own.range.high
            else int(own.range.low)
            for symbol, own in zip(ranges, self.symbols, strict=True)
        }
        self._sized, self._kept = of_sizes(traced, sizes)
        self._slots: tuple[int, ...] | None = None  # of the outputs, where there are subgraphs
        self._parts = self._make(record)

    def _make(self, record: Recording) -> list[_Part]:
        specs = [entry.spec for entry in self._sized.inputs]
        split = split_into_subgraphs(self._sized.graph)
        if split is None:
            whole = tuple(range(len(specs))), results_of(self._sized.graph), ()
            return [self._part(self._sized.graph, specs, whole, record)]
        self._slots = split.outputs
        made = []
        for subgraph in split.subgraphs:
            slots = subgraph.inputs, subgraph.outputs, subgraph.dead
            taken = [specs[slot] for slot in subgraph.inputs]
            made.append(self._part(subgraph.graph, taken, slots, record))
            specs += output_specs(made[-1].joint)
        return made

    def _part(
        self, gm: GraphModule, specs: Sequence[TensorSpec], slots: Any, record: Recording
    ) -> _Part:
        with record.stage("joint") as stage:
            joint = stage.keep(trace_joint(gm, specs, is_sized=True))
            _check_results(gm, joint)
        with record.stage("partition") as stage:
            parts = partition(joint)
            stage.keep(self._shown(parts))
        forward = self._kernels(parts.forward, "forward")
        return _Part(
            gm, joint, parts, SizedShell(parts, self.symbols, self._builders.tell), forward, slots
        )

    def _shown(self, parts: Partition) -> Partition:
        """For people, who run the graphs again: as they are in this call."""
        forward, backward = (
            None if gm is None else graph_at(gm, self._known(self._hints))
            for gm in (parts.forward, parts.backward)
        )
        return parts if forward is None else replace(parts, forward=forward, backward=backward)

    def _kernels(self, gm: GraphModule, name: str) -> _Kernels:
        target = self._builders.target(gm)
        return _Kernels(gm, name, self.symbols, target, self._options)

    # -- values of a call ------------------------------------------------------------------------

    def holds(self, values: Vector) -> bool:
        """Whether the graphs are those of these values."""
        return self.predicates.hold(values)

    def is_ready(self, values: Vector) -> bool:
        """Whether the forward needs no compiler for these values."""
        return self.holds(values) and all(part.forward.known(values) for part in self._parts)

    @property
    def compiled(self) -> int:
        """How many graphs a compiler was asked for."""
        return sum(part.forward.compiled for part in self._parts)

    def executable(self, values: Vector, inputs: int, record: Recording) -> Executable:
        """What runs the frame's graph at these values, which `holds` is true of. `inputs`: how many
        a call has.
        """
        if self._options.verify:
            for part in self._parts:
                verify_joint(graph_at(part.joint.module, self._known(values)))
        runs = [self._run(part, values, record) for part in self._parts]
        run = runs[0]
        if self._slots is not None:
            steps = tuple((run, *p.slots) for run, p in zip(runs, self._parts, strict=True))
            run = split_graph(len(self._kept), steps, self._slots)
        there = dict[Expr, int](zip(self._named, values, strict=True))
        return with_others(run, inputs, self._kept, results_of(self._sized.graph), there)

    def _run(self, part: _Part, values: Vector, record: Recording) -> Executable:
        known = self._known(values)
        forward = part.forward.executable(values, record)
        if forward is None:
            forward = self._builders.graph(graph_at(part.parts.forward, known), "forward", record)
        backward = Once(lambda missing: self._backward(part, missing, values))
        return part.shell.at(known, forward, backward, lambda: graph_at(part.graph, known))

    def _backward(self, part: _Part, missing: Missing, values: Vector) -> Executable:
        with self._lock:
            if missing not in part.backwards:
                gm = backward_without(part.parts, missing)
                part.backwards[missing] = gm, self._kernels(gm, "backward")
            gm, kernels = part.backwards[missing]

        def concrete() -> GraphModule:
            return graph_at(gm, self._known(values))

        def build(record: Recording) -> Executable:
            made = kernels.executable(values, record)
            return self._builders.graph(concrete(), "backward", record) if made is None else made

        return self._builders.backward(build, concrete)

    def _known(self, values: Vector) -> dict[Expr, int]:
        return dict(zip(self.symbols, values, strict=True))


def _check_results(gm: GraphModule, joint: Joint) -> None:
    """A decomposition may take a size for another kind of number: raises CompileFailed where the
    results are not what the trace says.
    """
    (traced,) = next(iter(gm.graph.find_nodes(op="output"))).args
    for node, made in zip(traced, output_specs(joint), strict=True):  # type: ignore[arg-type]
        said: TensorSpec = node.meta["spec"]  # type: ignore[union-attr]
        if (said.dtype, said.device, len(said.shape)) != (made.dtype, made.device, len(made.shape)):
            raise CompileFailed(f"{node} is {made} in the joint graph, not {said}")


def _own(symbol: Symbol, interval: Interval) -> Symbol:
    """A symbol of one joint only: those of another Context must not be equal. Of a size that data
    decide the trace tells layouts for more than one (`usually`).
    """
    if hintless(symbol):
        interval = interval.narrowed(MANY)
    return Symbol(symbol.name, int, interval, (symbol.origin, next(_COUNT)))


def with_others(
    run: Executable,
    inputs: int,
    kept: tuple[int | Filled, ...],
    results: int,
    values: dict[Expr, int],
) -> Executable:
    """A graph may take less than a call gives, without what only told a size, and takes numbers
    that are computed of sizes. `kept`: where its inputs come from.
    """
    numbers = tuple(one.make(values) for one in kept if isinstance(one, Filled))
    fresh = itertools.count(inputs)
    places = tuple(next(fresh) if isinstance(one, Filled) else one for one in kept)
    if places == tuple(range(inputs)):
        return run
    first = (itertools.repeat(numbers).__next__, (), len(numbers), ())
    before = inputs + len(numbers)
    made = tuple(range(before, before + results))
    return split_graph(inputs, (first, (run, places, results, ())), made)
