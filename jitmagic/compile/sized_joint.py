"""Traces one joint graph for all sizes of a frame, and builds its partition and kernels once.

Input: a Trace with Sizes, and the values of its symbols in one call (the hints). Output: a
SizedJoint. Its templates build the executable for any other values that pass its predicates,
natively: nothing is traced and no Python runs (extensions/runtime/sizes.h).

The joint and partition stages run once, on meta tensors with SymInts, as the tracer did. If an
autograd formula, a decomposition or torch's C++ branches on a size, it compares Sizes, and the
answer becomes a predicate. Code that reads a size as an int raises Specialize; the frame then has
no SizedJoint. So every branch taken is valid for all values that pass the predicates.

The alternative, which `sizes.py` uses where this one fails, is to trace each size tuple and to
compare its graph with the first one's. It is slow: training a transformer layer took 32 ms per new
size tuple, 28 of them for graphs that came out alike. The min cut of the partition weighs bytes at
the hints; other sizes use the same cut, as any cut is correct. With `options.verify` each node of
the joint graph is compared with the result of its operation at the sizes of each tuple.
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
from ..graph.symbolic.concrete import ScalarInput, graph_at, results_of
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
from ..trace.varying.concrete import ranges_of, with_symbols
from .template import Template, compile_template, for_all_sizes

__all__ = [
    "KEPT", "Builders", "BuiltExecutable", "SizedJoint", "checks", "own_sizes", "places_among",
]  # fmt: skip

SizeTuple = tuple[int, ...]
Missing = tuple[int, ...]
_COUNT = itertools.count()
KEPT = 64  # executables cached per template; building an evicted one again takes microseconds


class Builders(NamedTuple):
    """Functions that build executables for a SizedJoint (`executable.builders_for_sizes`).

    `target` chooses the target of a graph. `graph` builds the executable of a concrete graph.
    `backward` calls its first argument to build a backward; if that fails, it replays the graph
    that the second returns. `warn_of_replay` warns that a backward runs op by op.
    """

    target: Callable[[GraphModule], Target]
    graph: Callable[[GraphModule, str, Recording], Executable]
    backward: Callable[[Callable[[Recording], Executable], Callable[[], GraphModule]], Executable]
    warn_of_replay: Callable[[bool], None]


class _Kernels:
    """The templates of one ATen graph. There may be several: a schedule for small sizes has other
    predicates than one for large sizes.
    """

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
        self.compiled = 0  # how many templates needed a compiler

    def known(self, values: SizeTuple) -> Template | None:
        """Return the existing template for these values."""
        return next((template for template in self._made if template.holds(values)), None)

    def template(self, values: SizeTuple, record: Recording) -> Template | None:
        """Return the template for these values, building it if needed; None if there can be
        none.
        """
        with self._lock:
            template = self.known(values)
            if template is None and self.compiled < self._options.recompile_limit:
                self.compiled += 1
                template = self._compile(values, record) if self._is_sized else None
        return template

    def _compile(self, values: SizeTuple, record: Recording) -> Template | None:
        hints = dict(zip(self._symbols, values, strict=True))
        given = self._graph, self._name, hints, self._target, self._options, record
        # Earlier assumptions failed for these sizes; new ones would fail for the next sizes too.
        supposes = self.compiled <= self._options.recompile_limit // 2
        made = partial(compile_template, *given, supposes=supposes)
        template = for_all_sizes(f"{self._name}: for all sizes", values, made, record)
        if template is None:
            self._is_sized = False
            return None
        self._made.append(template)
        return template if template.holds(values) else None


class BuiltExecutable(NamedTuple):
    """An executable for one size tuple. `template` builds the executables of other tuples that pass
    `predicates`; None if Python has to build each.
    """

    run: Executable
    template: SizeTemplate | None
    predicates: tuple[Predicates, ...]


@dataclass(slots=True)
class _Part:
    """A subgraph of the frame: its graphs, and the slots of its inputs and outputs."""

    graph: GraphModule
    joint: Joint
    parts: Partition
    shell: SizedShell
    forward: _Kernels
    # Slots of its inputs, number of outputs, slots not read after it (Subgraph in graph/subgraphs).
    slots: tuple[tuple[int, ...], int, tuple[int, ...]]
    backwards: dict[Missing, BySizes] = field(default_factory=dict)


class SizedJoint:
    """The joint graphs and templates of a frame, for all values of its symbols that pass `holds`.

    The constructor raises what a stage raises if it cannot work with symbolic sizes.
    """

    def __init__(
        self,
        traced: Trace,
        values: SizeTuple,
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
        self._sized, self._kept = with_symbols(traced, sizes)
        self._slots: tuple[int, ...] | None = None  # of the outputs; None: no subgraphs
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
            SizedShell(parts, self.symbols, gm, self._builders.warn_of_replay),
            forward,
            slots,
        )

    def _kernels(self, gm: GraphModule, name: str) -> _Kernels:
        target = self._builders.target(gm)
        return _Kernels(gm, name, self.symbols, target, self._options)

    # -- values of a call ------------------------------------------------------------------------

    def holds(self, values: SizeTuple) -> bool:
        """Return whether the graphs are valid for these values."""
        return self.predicates.holds_for(values)

    def is_ready(self, values: SizeTuple) -> bool:
        """Return whether the forward needs no compiler for these values."""
        return self.holds(values) and all(part.forward.known(values) for part in self._parts)

    @property
    def in_parts(self) -> bool:
        """Return whether the graph is split into subgraphs."""
        return self._slots is not None

    @property
    def compiled(self) -> int:
        """Return the number of times that a compiler was needed."""
        return sum(part.forward.compiled for part in self._parts)

    def made(self, values: SizeTuple, inputs: int, record: Recording) -> BuiltExecutable:
        """Return the executable of the frame's graph at these values, for which `holds` is true.
        `inputs`: the number of a call's inputs.
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
        return BuiltExecutable(run, whole if is_native else None, predicates)

    def _alone(self, part: _Part, values: SizeTuple, record: Recording) -> Executable:
        """Build the forward of one size tuple, for which there can be no template."""
        gm = graph_at(part.parts.forward, self._known(values))
        return self._builders.graph(gm, "forward", record)

    def _assembled(self, forwards: Sequence[SizeTemplate | Executable], inputs: int) -> Any:
        """Return the executable for all sizes that runs these forwards one after the other. A
        single forward that takes the call's inputs in order is returned unchanged.
        """
        runs = [self._run(part, one) for part, one in zip(self._parts, forwards, strict=True)]
        whole = runs[0]
        if self._slots is not None:
            steps = tuple((run, *p.slots) for run, p in zip(runs, self._parts, strict=True))
            whole = split_template(len(self._kept), steps, self._slots, (), self._named)
        places, results = places_among(inputs, self._kept), results_of(self._sized.graph)
        if places == tuple(range(inputs)):
            return whole
        numbers = [
            (one.spec.dtype, one.value) for one in self._kept if isinstance(one, ScalarInput)
        ]
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
        """Return the backward without these tangents, for each size tuple."""
        with self._lock, collector_paused():
            if missing not in part.backwards:
                part.backwards[missing] = self._new_backward(part, missing)
            return part.backwards[missing]

    def _new_backward(self, part: _Part, missing: Missing) -> BySizes:
        gm = backward_without(part.parts, missing)
        kernels = self._kernels(gm, "backward")

        def build(values: SizeTuple, record: Recording) -> Executable:
            template = kernels.template(values, record)
            if template is None:
                return self._builders.graph(concrete(values), "backward", record)
            if template.is_native:
                known.add_template(checks((template.predicates,)), template.plan, None)
            return template.instantiate(values)

        def concrete(values: SizeTuple) -> GraphModule:
            return graph_at(gm, self._known(values))

        def missed(values: SizeTuple, _: object) -> Executable:
            with self._lock:
                run = self._builders.backward(partial(build, values), lambda: concrete(values))
                known.add(values, run)
                return run

        known = by_sizes((), missed, KEPT)
        return known

    def verify(self, values: SizeTuple) -> None:
        """Check that each node of the joint graphs gives its operation's result at these values."""
        for part in self._parts:
            verify_joint(graph_at(part.joint.module, self._known(values)))

    def _known(self, values: SizeTuple) -> dict[Expr, int]:
        return dict(zip(self.symbols, values, strict=True))


def _shown(parts: Partition, known: dict[Expr, int]) -> Partition:
    """Return the partition at this call's sizes: people may run the graphs that explain() shows."""
    backward = None if parts.backward is None else graph_at(parts.backward, known)
    return replace(parts, forward=graph_at(parts.forward, known), backward=backward)


def _forward(template: Template, values: SizeTuple) -> SizeTemplate | Executable:
    return template.plan if template.is_native else template.instantiate(values)


def _check_results(gm: GraphModule, joint: Joint) -> None:
    """Raise CompileFailed if a result of the joint graph has another dtype, device or rank than in
    the trace: a decomposition may take a SymInt for another kind of number.
    """
    (traced,) = next(iter(gm.graph.find_nodes(op="output"))).args
    for node, made in zip(traced, output_specs(joint), strict=True):  # type: ignore[arg-type]
        said: TensorSpec = node.meta["spec"]  # type: ignore[union-attr]
        if (said.dtype, said.device, len(said.shape)) != (made.dtype, made.device, len(made.shape)):
            raise CompileFailed(f"{node} is {made} in the joint graph, not {said}")


def own_sizes(
    ranges: Mapping[Symbol, Interval], values: SizeTuple
) -> tuple[Predicates, tuple[Dimension, ...]]:
    """Return predicates on fresh symbols, each in its range, and sizes over them; a range with one
    value gives an int.
    """
    pairs = zip(ranges.items(), values, strict=True)
    symbols = [_own(symbol, interval, n) for (symbol, interval), n in pairs]
    predicates = Predicates(dict(zip(symbols, values, strict=True)))
    return predicates, tuple(
        Size(one, predicates.context) if one.range.low < one.range.high else int(one.range.low)
        for one in symbols
    )


def _own(symbol: Symbol, interval: Interval, value: int) -> Symbol:
    """Return a fresh symbol: symbols of another Context must not be equal. For an unbacked size the
    trace assumes a layout for more than one (`usually`); 0 and 1 have joints of their own.
    """
    if hintless(symbol):
        interval = interval.narrowed(MANY if MANY.has(value) else Interval(value, value))
    return Symbol(symbol.name, int, interval, (symbol.origin, next(_COUNT)))


def places_among(inputs: int, kept: Sequence[int | ScalarInput]) -> tuple[int, ...]:
    """Return, for each input of a concrete graph, its position in (inputs of the call, *numbers
    computed from sizes). Inputs that were read only for their sizes are not among them.
    """
    fresh = itertools.count(inputs)
    return tuple(next(fresh) if isinstance(one, ScalarInput) else one for one in kept)


def checks(
    predicates: Sequence[Predicates],
    ranges: Mapping[Symbol, Interval] = MappingProxyType({}),
    relations: Iterable[Relation] = (),
    symbols: Sequence[Symbol] = (),
) -> SizeProgram:
    """Return a program that checks all these predicates, on values in the order of their
    symbols.
    """
    code = SizeCode(len(predicates[0].symbols))
    if symbols:
        code.set_symbols(symbols)
    code.require(ranges, relations)
    for each in predicates:
        each.write(code)
    return code.program()
