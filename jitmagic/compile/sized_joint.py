"""One joint graph for all sizes: autograd's split and the kernels of a frame whose sizes differ.

Comes in: a Trace with Sizes, and the values of its symbols in one call. Goes out: a SizedJoint,
whose template makes the executable of other values that pass its predicates: natively, with no
graph traced and no Python run (extensions/runtime/sizes.h).

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from types import MappingProxyType
from typing import Any, NamedTuple

from torch.fx import GraphModule

from ..autograd.partial import backward_without
from ..autograd.partition import partition
from ..autograd.result import Joint, Partition, output_specs
from ..autograd.shell import SizedShell
from ..autograd.sized import trace_sized_joint
from ..autograd.verify import verify_joint
from ..errors import CompileFailed
from ..graph.subgraphs import Subgraph, split_into_subgraphs
from ..graph.symbolic.concrete import Filled, graph_at, results_of
from ..late import collector_paused
from ..options import Options
from ..records import LazyPayload, Recording
from ..runtime.native import BySizes, Executable, SizeTemplate, by_sizes, split_template
from ..spec import TensorSpec
from ..symbols.compiled import Relation, SizeCode, SizeProgram
from ..symbols.expr import Expr
from ..symbols.interval import MANY, Interval
from ..symbols.predicates import Predicates
from ..symbols.scalar import Symbol
from ..symbols.size import Dimension, Size, hintless
from ..target import Target
from ..trace.result import Trace
from ..trace.varying.concrete import of_sizes, ranges_of
from .template import Template, compile_template, for_all_sizes

__all__ = [
    "KEPT", "Builders", "Made", "SizedJoint", "checks", "own_sizes", "places_among",
]  # fmt: skip

Vector = tuple[int, ...]
Missing = tuple[int, ...]
_COUNT = itertools.count()
KEPT = 64  # executables of a template: one more takes microseconds


class Builders(NamedTuple):
    """What executables are built with. `target` of a graph; `graph`: the executable of one of ints;
    `backward`: what its first argument builds, or a replay of the graph that the second gives;
    `tell`: that a backward is replayed.
    """

    target: Callable[[GraphModule], Target]
    graph: Callable[[GraphModule, str, Recording], Executable]
    backward: Callable[[Callable[[Recording], Executable], Callable[[], GraphModule]], Executable]
    tell: Callable[[bool], None]


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

    def template(self, values: Vector, record: Recording) -> Template | None:
        """None: there is no template for these values, and none can be made."""
        if self._options.backend != "native":  # the graph is run op by op
            return None
        with self._lock:
            template = self.known(values)
            if template is None and self.compiled < self._options.recompile_limit:
                self.compiled += 1
                template = self._compile(values, record) if self._is_sized else None
        return template

    def _compile(self, values: Vector, record: Recording) -> Template | None:
        hints = dict(zip(self._symbols, values, strict=True))
        given = self._graph, self._name, hints, self._target, self._options, record
        # Sizes that are like no others before them are not like the next ones either.
        supposes = self.compiled <= self._options.recompile_limit // 2
        made = partial(compile_template, *given, supposes=supposes)
        template = for_all_sizes(f"{self._name}: for all sizes", values, made, record)
        if template is None:
            self._is_sized = False
            return None
        self._made.append(template)
        return template if template.holds(values) else None


class Made(NamedTuple):
    """What runs at some values. `template`: what makes that of other values which pass all of
    `predicates`; None: there is none.
    """

    run: Executable
    template: SizeTemplate | None
    predicates: tuple[Predicates, ...]


@dataclass(slots=True)
class _Part:
    """A subgraph of the frame: its graphs, and where its values come from and go to."""

    graph: GraphModule
    joint: Joint
    parts: Partition
    shell: SizedShell
    forward: _Kernels
    slots: tuple[tuple[int, ...], int, tuple[int, ...]]  # inputs, how many outputs, dead
    backwards: dict[Missing, BySizes] = field(default_factory=dict)


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
        self.predicates, own = own_sizes(ranges, values)
        self.symbols = self.predicates.symbols
        sizes: dict[Expr, Any] = dict(zip(ranges, own, strict=True))
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
        made: list[_Part] = []

        def gives(subgraph: Subgraph, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
            slots = subgraph.inputs, subgraph.outputs, subgraph.dead
            made.append(self._part(subgraph.graph, taken, slots, record))
            return output_specs(made[-1].joint)

        split.follow(specs, gives)
        return made

    def _part(
        self, gm: GraphModule, specs: Sequence[TensorSpec], slots: Any, record: Recording
    ) -> _Part:
        with record.stage("joint") as stage:
            joint = stage.keep(trace_sized_joint(gm, specs))
            _check_results(gm, joint)
        with record.stage("partition") as stage:
            parts = partition(joint)
            stage.keep(LazyPayload(partial(_shown, parts, self._known(self._hints))))
        forward = self._kernels(parts.forward, "forward")
        return _Part(
            gm,
            joint,
            parts,
            SizedShell(parts, self.symbols, gm, self._builders.tell),
            forward,
            slots,
        )

    def _kernels(self, gm: GraphModule, name: str) -> _Kernels:
        target = self._builders.target(gm)
        return _Kernels(gm, name, self.symbols, target, self._options)

    # -- values of a call ------------------------------------------------------------------------

    def holds(self, values: Vector) -> bool:
        """Whether the graphs are those of these values."""
        return self.predicates.holds_for(values)

    def is_ready(self, values: Vector) -> bool:
        """Whether the forward needs no compiler for these values."""
        return self.holds(values) and all(part.forward.known(values) for part in self._parts)

    @property
    def in_parts(self) -> bool:
        """Whether its graph is cut into subgraphs."""
        return self._slots is not None

    @property
    def compiled(self) -> int:
        """How many graphs a compiler was asked for."""
        return sum(part.forward.compiled for part in self._parts)

    def made(self, values: Vector, inputs: int, record: Recording) -> Made:
        """What runs the frame's graph at these values, which `holds` is true of. `inputs`: how many
        a call has.
        """
        templates = [part.forward.template(values, record) for part in self._parts]
        forwards = [
            self._alone(part, values, record) if template is None else _forward(template, values)
            for part, template in zip(self._parts, templates, strict=True)
        ]
        whole = self._assembled(forwards, inputs)
        run: Executable = whole.at(values) if hasattr(whole, "at") else whole
        there = [template for template in templates if template is not None]
        predicates = (self.predicates, *(template.predicates for template in there))
        is_native = len(there) == len(templates) and all(one.is_native for one in there)
        return Made(run, whole if is_native else None, predicates)

    def _alone(self, part: _Part, values: Vector, record: Recording) -> Executable:
        """The forward of one vector, for which there can be no template."""
        gm = graph_at(part.parts.forward, self._known(values))
        return self._builders.graph(gm, "forward", record)

    def _assembled(self, forwards: Sequence[SizeTemplate | Executable], inputs: int) -> Any:
        """What has these forwards, for all sizes; one executable itself where that is all."""
        runs = [self._run(part, one) for part, one in zip(self._parts, forwards, strict=True)]
        whole = runs[0]
        if self._slots is not None:
            steps = tuple((run, *p.slots) for run, p in zip(runs, self._parts, strict=True))
            whole = split_template(len(self._kept), steps, self._slots, (), self._named)
        places, results = places_among(inputs, self._kept), results_of(self._sized.graph)
        if places == tuple(range(inputs)):
            return whole
        numbers = [(one.spec.dtype, one.value) for one in self._kept if isinstance(one, Filled)]
        first = inputs + len(numbers)
        step, outputs = (whole, places, results, ()), tuple(range(first, first + results))
        return split_template(inputs, (step,), outputs, tuple(numbers), self._named)

    def _run(self, part: _Part, forward: SizeTemplate | Executable) -> Any:
        return part.shell.template(
            forward,
            partial(self._backward, part),
            lambda values: graph_at(part.graph, self._known(values)),
        )

    def _backward(self, part: _Part, missing: Missing) -> BySizes:
        """What has the backward without these tangents, for each vector."""
        with self._lock, collector_paused():
            if missing not in part.backwards:
                part.backwards[missing] = self._new_backward(part, missing)
            return part.backwards[missing]

    def _new_backward(self, part: _Part, missing: Missing) -> BySizes:
        gm = backward_without(part.parts, missing)
        kernels = self._kernels(gm, "backward")

        def build(values: Vector, record: Recording) -> Executable:
            template = kernels.template(values, record)
            if template is None:
                return self._builders.graph(concrete(values), "backward", record)
            if template.is_native:
                known.add_template(checks((template.predicates,)), template.plan, None)
            return template.instantiate(values)

        def concrete(values: Vector) -> GraphModule:
            return graph_at(gm, self._known(values))

        def missed(values: Vector, _: object) -> Executable:
            with self._lock:
                run = self._builders.backward(partial(build, values), lambda: concrete(values))
                known.add(values, run)
                return run

        known = by_sizes((), missed, KEPT)
        return known

    def verify(self, values: Vector) -> None:
        """Each node of the joint graphs gives what its operation gives at these values."""
        for part in self._parts:
            verify_joint(graph_at(part.joint.module, self._known(values)))

    def _known(self, values: Vector) -> dict[Expr, int]:
        return dict(zip(self.symbols, values, strict=True))


def _shown(parts: Partition, known: dict[Expr, int]) -> Partition:
    """For people, who run the graphs again: as they are in this call."""
    backward = None if parts.backward is None else graph_at(parts.backward, known)
    return replace(parts, forward=graph_at(parts.forward, known), backward=backward)


def _forward(template: Template, values: Vector) -> SizeTemplate | Executable:
    return template.plan if template.is_native else template.instantiate(values)


def _check_results(gm: GraphModule, joint: Joint) -> None:
    """A decomposition may take a size for another kind of number: raises CompileFailed where the
    results are not what the trace says.
    """
    (traced,) = next(iter(gm.graph.find_nodes(op="output"))).args
    for node, made in zip(traced, output_specs(joint), strict=True):  # type: ignore[arg-type]
        said: TensorSpec = node.meta["spec"]  # type: ignore[union-attr]
        if (said.dtype, said.device, len(said.shape)) != (made.dtype, made.device, len(made.shape)):
            raise CompileFailed(f"{node} is {made} in the joint graph, not {said}")


def own_sizes(
    ranges: Mapping[Symbol, Interval], values: Vector
) -> tuple[Predicates, tuple[Dimension, ...]]:
    """Sizes over symbols of their own, each in its range, and the predicates of what is decided by
    them; an int where the range has one value.
    """
    pairs = zip(ranges.items(), values, strict=True)
    symbols = [_own(symbol, interval, n) for (symbol, interval), n in pairs]
    predicates = Predicates(dict(zip(symbols, values, strict=True)))
    return predicates, tuple(
        Size(one, predicates.context) if one.range.low < one.range.high else int(one.range.low)
        for one in symbols
    )


def _own(symbol: Symbol, interval: Interval, value: int) -> Symbol:
    """A symbol of one joint only: those of another Context must not be equal. Of a size without a
    hint the trace tells layouts for more than one (`usually`); for none and one there are joints.
    """
    if hintless(symbol):
        interval = interval.narrowed(MANY if MANY.has(value) else Interval(value, value))
    return Symbol(symbol.name, int, interval, (symbol.origin, next(_COUNT)))


def places_among(inputs: int, kept: Sequence[int | Filled]) -> tuple[int, ...]:
    """Where a graph's inputs are among those of a call and the numbers that are computed of sizes,
    which come behind them. A graph may take less than a call gives, without what only told a size.
    """
    fresh = itertools.count(inputs)
    return tuple(next(fresh) if isinstance(one, Filled) else one for one in kept)


def checks(
    predicates: Sequence[Predicates],
    ranges: Mapping[Symbol, Interval] = MappingProxyType({}),
    relations: Iterable[Relation] = (),
    symbols: Sequence[Symbol] = (),
) -> SizeProgram:
    """Whether all of these are true of values, which are in the order of each one's symbols."""
    code = SizeCode(len(predicates[0].symbols))
    if symbols:
        code.set_symbols(symbols)
    code.require(ranges, relations)
    for each in predicates:
        each.write(code)
    return code.program()
