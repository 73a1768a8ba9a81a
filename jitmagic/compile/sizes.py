"""Keeps one executable for each size tuple that a graph with symbols was called with.

Input: a Trace whose inputs have Sizes, and a function that compiles a static trace. Output: a
callable of the graph's tensor inputs, which reads the sizes from them. A size tuple holds the
values of all symbols in one call.

Usually one joint graph serves all size tuples that pass its predicates (`sized_joint.py`), and
native code builds the executable of a new tuple in microseconds without calling this module.

Python is called (`SizeCompiler.missed`) if no template exists yet, and for each new tuple of a
graph that needs ints (an operation that torch's formulas decompose by size). The graph is then made
concrete (`trace/varying/concrete.py`) and compiled for the tuple; the frame is not traced again and
gets no guard. `Templates` may still supply kernels that serve all sizes.

After `recompile_limit` tuples that needed a compiler, further ones run the graph op by op, because
compiling takes longer than many calls. Even if kernels exist, a new tuple costs a trace of its
graphs. Once that many tuples have executables, another one gets its own only after its calls op by
op have taken as long as building one takes on average: at most twice the time of the better choice.
Sizes of a static variant use its kernels, which are faster and already cached.
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
from ..graph.lazy_module import with_code
from ..graph.operators.autocast import restoring_modes
from ..graph.subgraphs import split_if_possible
from ..graph.symbolic.concrete import ScalarInput, results_of
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
from .sized_joint import KEPT, Builders, BuiltExecutable, SizedJoint, checks, places_among
from .template import Templates, for_all_sizes

__all__ = ["Build", "CompiledGraph", "SizeCompiler", "compile_sizes"]

SizeTuple = tuple[int, ...]
Shapes = Mapping[Source, tuple[int, ...]]
Build = Callable[[GraphModule, str, Target, Recording], Executable | None]
Inputs = Callable[[], Sequence[torch.Tensor]]
_PLANNED = 32  # times `recompile_limit`: tuples that may have executables; each holds memory
_PRIMES = (101, 211, 307, 401, 503, 601, 701, 809)  # sizes unlikely to be constants of a program
_MULTIPLES = (1, 2, 4, 8, 16, 3, 5, 64)  # factors for guards that need divisible sizes
_TRIED = 4096  # size tuples


class CompiledGraph(NamedTuple):
    """An executable and the specs of its outputs (None: the trace's).

    `in_parts`: it consists of several executables, so one may write to inputs before another
    raises.
    """

    run: Executable
    outputs: Sequence[TensorSpec] | None = None
    in_parts: bool = False


Compile = Callable[[Trace, Inputs, Recording, Build], CompiledGraph]


def compile_sizes(
    traced: Trace,
    inputs: Sequence[torch.Tensor],
    compile_static: Compile,
    builders: Builders,
    options: Options,
    record: Recording,
    static: Iterable[Shapes] = (),
) -> CompiledGraph:
    """Compile for the sizes of `inputs` and, where possible, for all sizes.

    `static`: the shapes of static variants, which have their own kernels. Raises what a stage
    raises.
    """
    made = SizeCompiler(
        traced, compile_static, builders, options, record, _size_tuples(traced, static)
    )
    made.add(hints_of(traced), inputs, record)
    return CompiledGraph(made.run, in_parts=made.in_parts)


def _op_by_op(traced: Trace) -> Executable:
    """Return the graph as an op-by-op executable, for sizes without compiled code.

    Unlike compiled code, it may have written to inputs when it raises; it then restores them if
    eager is to start over.
    """
    run = restoring_modes(traced.graph, with_code(traced.graph).forward)
    early = written_before_raising(traced) if can_start_over(traced) else ()
    return undo_on_error(run, early, False) if early else run


def _size_tuples(traced: Trace, known: Iterable[Shapes]) -> frozenset[SizeTuple]:
    """Return the values that the symbols have in these shapes."""
    origins: list[Any] = [symbol.origin for symbol in places_of(traced)]
    if not all(isinstance(origin, SizeOf) for origin in origins):
        return frozenset()
    return frozenset(
        tuple(shapes[origin.source][origin.dim] for origin in origins)
        for shapes in known
        if all(origin.source in shapes for origin in origins)
    )


class SizeCompiler:
    """Compiles a symbolic graph for the sizes that occur. `run` is the executable for all of them:
    it looks up the size tuple of a call and asks `missed` for a new one.
    """

    __slots__ = (
        *("_builders", "_compile", "_costly", "_expected", "_is_patient", "_is_sized", "_op_by_op"),
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
        static: frozenset[SizeTuple] = frozenset(),
    ) -> None:
        self._traced, self._compile, self._later = traced, compile_, record.for_later()
        self._builders, self._options = builders, options
        self._limit, self._static = options.recompile_limit, static
        self._joints: list[SizedJoint | SizedBackend] = []
        self.in_parts = False  # whether any executable consists of several (CompiledGraph.in_parts)
        is_native = options.backend == "native" and not options.tunes
        self._is_sized = is_native or callable(options.backend)
        self._made: dict[SizeTuple, Executable] = {}
        self._costly = 0  # how many of `_made` needed a compiler
        self._is_patient = options.keep == "faster"
        self._planning = 0.0  # seconds that building all of `_made` took
        self._waited: dict[SizeTuple, float] = {}  # seconds of op-by-op calls of other tuples
        self._op_by_op: list[Executable] = []  # at most one item, built at first use
        self._lock = RLock()
        self._kernels: list[Templates | None] = []  # at most one item, built at first use
        self._symbols, self._expected = tuple(places_of(traced)), expected_of(traced)
        places = tuple(places_of(traced).values())
        self.run: BySizes = by_sizes(places, self.missed, KEPT, tuple(static))

    def add(self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording) -> None:
        """Compile for these sizes and add the executable to `run`."""
        began = time.perf_counter()
        run = self._made[values] = self.compile_for(values, inputs, record)
        self._planning += time.perf_counter() - began
        self.run.add(values, run)

    def compile_for(
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """Return the executable of one size tuple."""
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

    def _checks(self, made: BuiltExecutable) -> SizeProgram:
        ranges = {s: s.range for s in self._symbols if isinstance(s.origin, DataSize)}
        return checks(made.predicates, ranges, self._expected, self._symbols)

    def _verify_of(self, joint: SizedJoint | SizedBackend) -> Callable[[SizeTuple], None] | None:
        return joint.verify if self._options.verify else None

    def _joint_of(
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> SizedJoint | SizedBackend | None:
        """Return the joint graph for all sizes whose predicates these values pass; None if this
        size tuple must be traced alone.
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
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> SizedJoint | SizedBackend:
        backend = self._options.backend
        if callable(backend):
            return SizedBackend(backend, self._traced, values, inputs, record)
        return SizedJoint(self._traced, values, self._builders, self._options, record)

    def _compile_alone(
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """Run each stage as for a static graph; kernels may be shared with other size tuples."""
        kernels = None if values in self._static else self._templates(record)
        before = 0 if kernels is None else kernels.compiled

        def build(
            gm: GraphModule, name: str, target: Target, record: Recording
        ) -> Executable | None:
            return None if kernels is None else kernels.executable(gm, name, values, target, record)

        # At the hints, the trace itself has issued torch's warnings.
        warns = values != hints_of(self._traced)
        concrete, taken = at_sizes(self._traced, values, warns)
        numbers = tuple(one.make() for one in taken if isinstance(one, ScalarInput))
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
        """Return the graph op by op; built when needed, as generating its code is slow."""
        if not self._op_by_op:
            self._op_by_op.append(_op_by_op(self._traced))
        return self._op_by_op[0]

    def missed(self, values: SizeTuple, inputs: Sequence[torch.Tensor]) -> Executable:
        """Return the executable for a call of these sizes, which are new or were evicted."""
        with self._lock:
            is_ready = any(joint.is_ready(values) for joint in self._joints)
            if values in self._made:  # evicted from the native cache
                run = self._made[values]
            elif not self.is_expected(values):  # op by op, an operation raises eager's error
                return self._graph
            elif is_ready and values not in self._static:
                run = self._compile_in_call(values, inputs)  # only fills in sizes: microseconds
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

    def is_expected(self, values: SizeTuple) -> bool:
        """Return whether eager accepts these data-dependent sizes. Raises SizesDiffer if the trace
        does not cover them.
        """
        known = dict[Expr, Any](zip(self._symbols, values, strict=True))
        for symbol, value in zip(self._symbols, values, strict=True):
            if isinstance(symbol.origin, DataSize) and not symbol.range.has(value):
                raise SizesDiffer(f"{value} is a size that the trace does not cover")
        return all(is_true_of(op, left, right, known) for op, left, right in self._expected)

    def _is_early(self, values: SizeTuple) -> bool:
        """Return whether the tuple's op-by-op calls have so far taken less time than building its
        executable would.
        """
        plans = len(self._made)
        waited = self._waited.get(values, 0.0)
        return plans >= self._limit and waited < self._planning / plans

    def _wait(self, values: SizeTuple, *inputs: torch.Tensor) -> tuple[Any, ...]:
        began = time.perf_counter()
        made: tuple[Any, ...] = self._graph(*inputs)
        if len(self._waited) < _PLANNED * self._limit or values in self._waited:
            seconds = time.perf_counter() - began
            self._waited[values] = self._waited.get(values, 0.0) + seconds
        return made

    def _is_full(self) -> bool:
        return self._costly >= self._limit or len(self._made) >= _PLANNED * self._limit

    def _compile_in_call(self, values: SizeTuple, inputs: Sequence[torch.Tensor]) -> Executable:
        record = self._later.for_later()
        try:
            with sandbox(), within(self._options.budget):
                run = self.compile_for(values, inputs, record)
            if record.stages:  # otherwise sizes were filled into existing templates
                record.end(COMPILED)
            return run
        except (Exception, OutOfTime) as error:  # op by op, the graph still gives the right result
            failed = Failed.of(error, record.failed_in)
            if isinstance(error, OutOfTime):
                failed = TookTooLong.after(self._options.budget, record.stages)
            record.end(failed)
            if isinstance(error, SizesDiffer):
                return _raising(error)
            warn(failed.report(f"{record.name} at sizes {values}", "runs op by op"))
            return self._graph


def _raising(error: SizesDiffer) -> Executable:
    """Return an executable that raises: the frame then runs in eager, unless its graph writes to
    inputs.
    """

    def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
        raise error

    return run


# ------------------------------------------------------------------------ kernels for all sizes


def _templates(traced: Trace, options: Options, record: Recording) -> Templates | None:
    """Return the templates of the graph; None if each size tuple is compiled alone."""
    if options.backend != "native" or options.tunes:
        return None
    with record.stage("sizes") as stage:
        probe = _other_sizes(traced)
        if probe is None:
            stage.keep("its guards leave no other sizes")
            return None
        try:
            others = _graphs_at(traced, probe)
        except Exception as error:  # any stage may raise: each size tuple is compiled alone then
            stage.keep(f"no graph at sizes {probe}: {type(error).__name__}: {error}")
            return None
        return Templates(places_of(traced), _expressions(traced), probe, others, options)


def _other_sizes(traced: Trace) -> SizeTuple | None:
    """Return sizes far from the program's constants and from one another, which pass the guards."""
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
    """Return candidates for a size; those near the hint suit bounded numbers, such as an index."""
    return [*(prime * times for times in _MULTIPLES), hint + 3, hint - 3, hint + 1, hint - 1, hint]


def _graphs_at(traced: Trace, values: SizeTuple) -> list[GraphModule]:
    """Return the ATen graphs at these sizes, as `pipeline` would compile them."""
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
    """Yield the expressions of sizes in the shapes and strides of the graph's tensors."""
    for node in traced.graph.graph.nodes:
        spec = node.meta.get("spec")
        for each in spec if isinstance(spec, tuple | list) else (spec,):
            if isinstance(each, TensorSpec):
                sizes: tuple[Dimension, ...] = (*each.shape, *each.stride)
                yield from (size.expr for size in sizes if isinstance(size, Size))
