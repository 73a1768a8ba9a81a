"""One executable for each vector of sizes that a graph with symbols was called with.

Comes in: a Trace whose inputs have Sizes, and how a static trace is compiled. Goes out: a callable
of the tensors alone, which reads the sizes off them. One joint graph serves all vectors that its
predicates are true of (`sized_joint.py`): what a new one runs is made natively, in microseconds,
and this module is not asked.

It is asked where no template is there yet, and for each vector of a graph that wants ints (an
operation that torch's formulas take apart by size): then a new vector is a compile of the graph at
these sizes (`trace/varying/concrete.py`), not of the frame: nothing is traced, no guard added.
Kernels are asked of Templates first, which have one set of them for all sizes. Further vectors that
need a compiler than `limit` run the graph op by op: compiling takes longer than many calls. A plan
takes time too, as graphs are traced for it: once there are `limit` of them, a vector gets one when
its calls have taken as long op by op, which is at most twice the time of the better choice. Sizes
that have a static variant keep its kernels, which are faster and are in the cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from ..autograd.joint import trace_joint
from ..autograd.partition import partition
from ..autograd.result import output_specs
from ..budget import OutOfTime, within
from ..errors import SizesDiffer, warn
from ..frame.sandbox import sandbox
from ..graph.lazy_module import written
from ..graph.operators.autocast import modes_kept
from ..graph.subgraphs import split_if_possible
from ..graph.symbolic.concrete import Filled, results_of
from ..guards.guard import InRange, SizesRelate
from ..guards.source import Source
from ..options import Options
from ..records import COMPILED, Failed, Recording, TookTooLong
from ..runtime.native import BySizes, Executable, by_sizes, split_graph, undo_on_error
from ..spec import TensorSpec
from ..symbols.compiled import SizeProgram
from ..symbols.context import is_true_of
from ..symbols.expr import Expr
from ..symbols.interval import INT64, Interval
from ..symbols.size import DataSize, Dimension, Size, SizeOf
from ..target import Target
from ..trace.residual.undo import can_start_over, written_before_raising
from ..trace.result import Trace
from ..trace.varying.concrete import at_sizes, expected_of, hints_of, places_of
from .sized_backend import SizedBackend
from .sized_joint import KEPT, Builders, Made, SizedJoint, checks, places_among
from .template import Templates, for_all_sizes

__all__ = ["Build", "CompiledGraph", "Sized", "sized"]

Vector = tuple[int, ...]
Shapes = Mapping[Source, tuple[int, ...]]
Build = Callable[[GraphModule, str, Target, Recording], Executable | None]
Inputs = Callable[[], Sequence[torch.Tensor]]
_PLANNED = 32  # times `limit`: vectors that need no compiler, but tracing and memory for a plan
_PRIMES = (101, 211, 307, 401, 503, 601, 701, 809)  # numbers that programs do not have
_MULTIPLES = (1, 2, 4, 8, 16, 3, 5, 64)  # of them, where sizes have to be divisible
_TRIED = 4096


class CompiledGraph(NamedTuple):
    """What runs, and what its outputs are like; None: as the trace says. `in_parts`: one executable
    of it writes to inputs before another one may raise.
    """

    run: Executable
    outputs: Sequence[TensorSpec] | None = None
    in_parts: bool = False


Compile = Callable[[Trace, Inputs, Recording, Build], CompiledGraph]


def sized(
    traced: Trace,
    inputs: Sequence[torch.Tensor],
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
    static: Iterable[Shapes] = (),
) -> CompiledGraph:
    """The executable, compiled for the sizes of `inputs`. `static`: shapes of variants that have
    kernels of their own. Raises what a stage raises.
    """
    made = Sized(traced, compile_static, builders, options, record, _vectors(traced, static))
    made.add(hints_of(traced), inputs, record)
    return CompiledGraph(made.run, in_parts=made.in_parts)


def _in_order(traced: Trace) -> Executable:
    """The graph op by op, for sizes that nothing is compiled for. Other than what is compiled, it
    may have written to inputs when it raises, and then puts them back if eager is to start over.
    """
    run = modes_kept(traced.graph, written(traced.graph).forward)
    early = written_before_raising(traced) if can_start_over(traced) else ()
    return undo_on_error(run, early, False) if early else run


def _vectors(traced: Trace, known: Iterable[Shapes]) -> frozenset[Vector]:
    """The values that the symbols have in these shapes."""
    origins: list[Any] = [symbol.origin for symbol in places_of(traced)]
    if not all(isinstance(origin, SizeOf) for origin in origins):
        return frozenset()
    return frozenset(
        tuple(shapes[origin.source][origin.dim] for origin in origins)
        for shapes in known
        if all(origin.source in shapes for origin in origins)
    )


class Sized:
    """Compiles a symbolic graph for the sizes that come; `run` is the executable."""

    __slots__ = (
        *("_builders", "_compile", "_costly", "_expected", "_is_patient", "_is_sized", "_in_order"),
        *("_joints", "_kernels", "_later", "_limit", "_lock", "_made", "_options", "_planning"),
        *("_static", "_symbols", "_traced", "_waited", "in_parts", "run"),
    )

    def __init__(
        self,
        traced: Trace,
        compile_: Compile,
        builders: Builders,
        options: Options,
        record: Recording,
        static: frozenset[Vector] = frozenset(),
    ) -> None:
        self._traced, self._compile, self._later = traced, compile_, record.for_later()
        self._builders, self._options = builders, options
        self._limit, self._static = options.recompile_limit, static
        self._joints: list[SizedJoint | SizedBackend] = []
        self.in_parts = False  # whether an executable of those made is
        is_native = options.backend == "native" and not options.tunes
        self._is_sized = is_native or options.backend == "aot_eager" or callable(options.backend)
        self._made: dict[Vector, Executable] = {}
        self._costly = 0  # of these, how many were compiled
        self._is_patient = options.keep == "faster"
        self._planning = 0.0  # seconds, for all that were made
        self._waited: dict[Vector, float] = {}  # seconds op by op of those that were not
        self._in_order: list[Executable] = []  # when it is needed
        self._lock = RLock()
        self._kernels: list[Templates | None] = []  # when they are needed
        self._symbols, self._expected = tuple(places_of(traced)), expected_of(traced)
        places = tuple(places_of(traced).values())
        self.run: BySizes = by_sizes(places, self.missed, KEPT, tuple(static))

    def add(self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording) -> None:
        """Compile for these sizes."""
        began = time.perf_counter()
        run = self._made[values] = self.compile_for(values, inputs, record)
        self._planning += time.perf_counter() - began
        self.run.add(values, run)

    def compile_for(
        self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """The executable of one vector of sizes."""
        joint = None if values in self._static else self._joint_of(values, inputs, record)
        if joint is None:
            return self._compile_alone(values, inputs, record)
        self.in_parts = self.in_parts or joint.in_parts
        before = joint.compiled
        made = joint.made(values, len(inputs), record)
        self._costly += joint.compiled > before
        if made.template is not None:
            self.run.add_template(self._checks(made), made.template, self._verify_of(joint))
        elif (verify := self._verify_of(joint)) is not None:
            verify(values)
        return made.run

    def _checks(self, made: Made) -> SizeProgram:
        ranges = {s: s.range for s in self._symbols if isinstance(s.origin, DataSize)}
        return checks(made.predicates, ranges, self._expected, self._symbols)

    def _verify_of(self, joint: SizedJoint | SizedBackend) -> Callable[[Vector], None] | None:
        return joint.verify if self._options.verify else None

    def _joint_of(
        self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording
    ) -> SizedJoint | SizedBackend | None:
        """Return what serves all sizes that these pass; None: this size tuple is traced by
        itself.
        """
        for joint in self._joints:
            if joint.holds(values):
                return joint
        if not self._is_sized or len(self._joints) >= self._limit:
            return None
        make = partial(self._make_for_all, values, inputs, record)
        made = for_all_sizes("joint for all sizes", values, make, record)
        if made is None:
            self._is_sized = False
            return None
        self._joints.append(made)
        return made if made.holds(values) else None

    def _make_for_all(
        self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording
    ) -> SizedJoint | SizedBackend:
        backend = self._options.backend
        if callable(backend):
            return SizedBackend(backend, self._traced, values, inputs, record)
        return SizedJoint(self._traced, values, self._builders, self._options, record)

    def _compile_alone(
        self, values: Vector, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """Each stage as for a static graph; kernels may be those of other vectors."""
        kernels = None if values in self._static else self._templates(record)
        before = 0 if kernels is None else kernels.compiled

        def build(
            gm: GraphModule, name: str, target: Target, record: Recording
        ) -> Executable | None:
            return None if kernels is None else kernels.executable(gm, name, values, target, record)

        warns = values != hints_of(self._traced)  # the trace has warned for those
        concrete, taken = at_sizes(self._traced, values, warns)
        numbers = tuple(one.make() for one in taken if isinstance(one, Filled))
        places, known = places_among(len(inputs), taken), (*inputs, *numbers)
        made = self._compile(concrete, lambda: [known[place] for place in places], record, build)
        self.in_parts = self.in_parts or made.in_parts
        self._costly += kernels is None or kernels.compiled > before
        if places == tuple(range(len(inputs))):
            return made.run
        results = results_of(concrete.graph)
        outputs = tuple(range(len(known), len(known) + results))
        return split_graph(len(inputs), ((made.run, places, results, ()),), outputs, numbers)

    def _templates(self, record: Recording) -> Templates | None:
        if not self._kernels:
            self._kernels.append(_templates(self._traced, self._options, record))
        return self._kernels[0]

    @property
    def _graph(self) -> Executable:
        """The graph op by op, whose code takes longer to write than most graphs to trace."""
        if not self._in_order:
            self._in_order.append(_in_order(self._traced))
        return self._in_order[0]

    def missed(self, values: Vector, inputs: Sequence[torch.Tensor]) -> Executable:
        """What a call of these sizes runs, which are new, or forgotten."""
        with self._lock:
            is_ready = any(joint.is_ready(values) for joint in self._joints)
            if values in self._made:
                run = self._made[values]
            elif not self.is_expected(values):
                return self._graph
            elif is_ready and values not in self._static:
                run = self._compile_in_call(values, inputs)  # which takes next to nothing
            elif self._is_full():
                return self._graph
            elif self._is_patient and not is_ready and self._is_early(values):
                return partial(self._wait, values)
            else:
                began = time.perf_counter()
                run = self._made[values] = self._compile_in_call(values, inputs)
                self._planning += time.perf_counter() - began
            self.run.add(values, run)
            return run

    def is_expected(self, values: Vector) -> bool:
        """Whether eager accepts such sizes where data decide them. Raises SizesDiffer where they
        are no sizes.
        """
        known = dict[Expr, Any](zip(self._symbols, values, strict=True))
        for symbol, value in zip(self._symbols, values, strict=True):
            if isinstance(symbol.origin, DataSize) and not symbol.range.has(value):
                raise SizesDiffer(f"{value} is no size that the trace goes with")
        return all(is_true_of(op, left, right, known) for op, left, right in self._expected)

    def _is_early(self, values: Vector) -> bool:
        """Whether its calls have not taken as long yet as a plan takes."""
        plans = len(self._made)
        waited = self._waited.get(values, 0.0)
        return plans >= self._limit and waited < self._planning / plans

    def _wait(self, values: Vector, *inputs: torch.Tensor) -> tuple[Any, ...]:
        began = time.perf_counter()
        made: tuple[Any, ...] = self._graph(*inputs)
        if len(self._waited) < _PLANNED * self._limit or values in self._waited:
            seconds = time.perf_counter() - began
            self._waited[values] = self._waited.get(values, 0.0) + seconds
        return made

    def _is_full(self) -> bool:
        return self._costly >= self._limit or len(self._made) >= _PLANNED * self._limit

    def _compile_in_call(self, values: Vector, inputs: Sequence[torch.Tensor]) -> Executable:
        record = self._later.for_later()
        try:
            with sandbox(), within(self._options.budget):
                run = self.compile_for(values, inputs, record)
            if record.stages:  # else nothing was made but a plan
                record.end(COMPILED)
            return run
        except (Exception, OutOfTime) as error:  # the graph itself has a right answer
            failed = Failed.of(error, record.failed_in)
            if isinstance(error, OutOfTime):
                failed = TookTooLong.after(self._options.budget, record.stages)
            record.end(failed)
            if isinstance(error, SizesDiffer):
                return _raising(error)
            warn(failed.report(f"{record.name} at sizes {values}", "runs op by op"))
            return self._graph


def _raising(error: SizesDiffer) -> Executable:
    """Nothing has run yet: the frame starts over as eager, unless its graph writes to inputs."""

    def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
        raise error

    return run


# ------------------------------------------------------------------------ kernels for all sizes


def _templates(traced: Trace, options: Options, record: Recording) -> Templates | None:
    """None: each vector is compiled by itself."""
    if options.backend != "native" or options.tunes:
        return None
    with record.stage("sizes") as stage:
        probe = _other_sizes(traced)
        if probe is None:
            stage.keep("its guards leave no other sizes")
            return None
        try:
            others = _graphs_at(traced, probe)
        except Exception as error:  # whatever a stage raised: it compiles for sizes that come
            stage.keep(f"no graph at sizes {probe}: {type(error).__name__}: {error}")
            return None
        return Templates(places_of(traced), _expressions(traced), probe, others, options)


def _other_sizes(traced: Trace) -> Vector | None:
    """Sizes far from the program's numbers and from one another, which pass the guards."""
    symbols, hints = tuple(places_of(traced)), hints_of(traced)
    related = [
        guard
        for guard in traced.guards
        if isinstance(guard, SizesRelate) and set(guard.symbols) <= set(symbols)
    ]
    ranges = {g.source: Interval(g.low, g.high) for g in traced.guards if isinstance(g, InRange)}
    primes = itertools.islice(itertools.cycle(_PRIMES), len(hints))
    choices = [
        [n for n in _choices(prime, hint) if ranges.get(symbol.origin, INT64).has(n)]  # type: ignore[call-overload]
        for symbol, prime, hint in zip(symbols, primes, hints, strict=True)
    ]
    for values in itertools.islice(itertools.product(*choices), _TRIED):
        known = dict[Expr, int](zip(symbols, values, strict=True))
        if values != hints and all(is_true_of(g.op, g.left, g.right, known) for g in related):
            return values
    return None


def _choices(prime: int, hint: int) -> list[int]:
    """Those near the hint are for numbers that are bounded: an index, a part of a length."""
    return [*(prime * times for times in _MULTIPLES), hint + 3, hint - 3, hint + 1, hint - 1, hint]


def _graphs_at(traced: Trace, values: Vector) -> list[GraphModule]:
    """The ATen graphs at these sizes, as `pipeline` would compile them."""
    concrete, _ = at_sizes(traced, values)
    specs = [entry.spec for entry in concrete.inputs]
    graphs: list[GraphModule] = []

    def follow(gm: GraphModule, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        joint = trace_joint(gm, taken)
        parts = partition(joint)
        graphs.extend(gm for gm in (parts.forward, parts.backward) if gm is not None)
        return output_specs(joint)

    split = split_if_possible(concrete.graph)
    if split is None:
        follow(concrete.graph, specs)
    else:
        split.follow(specs, lambda subgraph, taken: follow(subgraph.graph, taken))
    return graphs


def _expressions(traced: Trace) -> Iterator[Expr]:
    """What the frame computes of its sizes, as far as the shapes of its tensors show it."""
    for node in traced.graph.graph.nodes:
        spec = node.meta.get("spec")
        for each in spec if isinstance(spec, tuple | list) else (spec,):
            if isinstance(each, TensorSpec):
                sizes: tuple[Dimension, ...] = (*each.shape, *each.stride)
                yield from (size.expr for size in sizes if isinstance(size, Size))
