"""Serves a graph with symbols at the sizes of each call.

Input: a Trace whose inputs have Sizes, and a function that compiles a static trace. Output: a
callable of the graph's tensor inputs, which reads the sizes from them. A size tuple holds the
values of all symbols in one call.

One joint graph serves all size tuples that pass its predicates (`sized_joint.py`, and
`sized_backend.py` for the user's backend). Native code builds the executable of a new tuple in
microseconds without calling this module. Python is called (`SizeCompiler.missed`) if no joint graph
or no kernels serve a tuple yet. A size that a stage reads as an int is a constant of the joint
graphs: there is one for each of its values.

A graph that no stage compiles for all sizes, or a backend that wants ints, is compiled for each
tuple like a static graph; the frame is not traced again and gets no guard. Sizes of a static
variant use its kernels, which are faster and already cached.

After `recompile_limit` compiles, size tuples without kernels run the graph op by op, because
compiling takes longer than many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..budget import OutOfTime, within
from ..construction import StoredBy
from ..errors import SizesDiffer, warn
from ..frame.sandbox import sandbox
from ..graph.autocast_mode import restoring_modes
from ..graph.lazy_module import with_code
from ..graph.symbolic.concrete import ScalarInput, results_of
from ..guards.source import Source
from ..late import late_names
from ..lazy_dataclass import dataclass
from ..options import Options
from ..records import COMPILED, Failed, Recording, TookTooLong
from ..runtime.native import (
    SIZES_KEPT,
    BySizes,
    Step,
    add_alone,
    add_template,
    by_sizes,
    split_graph,
    undo_on_error,
)
from ..spec import TensorSpec
from ..symbols.context import is_true_of
from ..symbols.expr import Expr
from ..symbols.size import DataSize, SizeOf
from ..symbols.size_programs import SizeProgram
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable
from ..trace.residual.undo import can_start_over, written_before_raising
from ..trace.result import GraphInput, Trace
from ..trace.varying.concrete import expected_of, hints_of, places_of, with_sizes
from .sized_backwards import Builders

if TYPE_CHECKING:
    from ..symbols.predicates import checks
    from .sized_backend import SizedBackend
    from .sized_joint import BuiltExecutable, SizedJoint, places_among
    from .template import SizeTuple, for_all_sizes
else:
    late_names(
        globals(),
        {
            "compile.sized_backend": "SizedBackend",
            "compile.sized_joint": "SizedJoint, places_among",
            "compile.template": "for_all_sizes",
            "symbols.predicates": "checks",
        },
    )

__all__ = [
    "Compile", "CompiledGraph", "SizeCompiler", "SizedState", "compile_at", "compile_sizes",
    "op_by_op",
]  # fmt: skip

Shapes = Mapping[Source, tuple[int, ...]]
Inputs = Callable[[], Sequence[torch.Tensor]]


class CompiledGraph(NamedTuple):
    """An executable and the specs of its outputs (None: the trace's).

    `in_parts`: it consists of several executables, so one may write to inputs before another
    raises. `interpreted`: torch runs its calls one by one, with any backend.
    """

    run: Executable
    outputs: Sequence[TensorSpec] | None = None
    in_parts: bool = False
    interpreted: bool = False


Compile = Callable[[Trace, Inputs, Recording], CompiledGraph]


@dataclass(frozen=True, slots=True)
class SizedState(StoredBy):
    """Holds what a SizeCompiler needs of a trace: data for another process."""

    WRITER = "size_compiler"
    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    mutated: tuple[int, ...]


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


def compile_at(
    traced: Trace,
    known: Mapping[Expr, object],
    inputs: Sequence[torch.Tensor],
    compile_static: Compile,
    record: Recording,
) -> CompiledGraph:
    """Compile for these values of the symbols alone, like a static graph."""
    concrete, taken = with_sizes(traced, known)
    numbers = tuple(one.make(known) for one in taken if isinstance(one, ScalarInput))
    places, given = places_among(len(inputs), taken), (*inputs, *numbers)
    made = compile_static(concrete, lambda: [given[place] for place in places], record)
    if places == tuple(range(len(inputs))):
        return made
    results = results_of(concrete.graph)
    outputs = tuple(range(len(given), len(given) + results))
    run = split_graph(len(inputs), [Step(made.run, places, results)], outputs, numbers)
    return CompiledGraph(run, in_parts=made.in_parts)


def op_by_op(traced: Trace) -> Executable:
    """Return the graph as an op-by-op executable, for sizes without compiled code.

    Unlike compiled code, it may have written to inputs when it raises; it then restores them if
    eager is to start over.
    """
    run = restoring_modes(traced.graph, with_code(traced.graph).forward)
    early = written_before_raising(traced) if can_start_over(traced) else ()
    return undo_on_error(run, early, False) if early else run


def _size_tuples(traced: Trace, known: Iterable[Shapes]) -> frozenset[SizeTuple]:
    """Return the values that the symbols have in these shapes."""
    symbols = places_of(traced)
    places = [
        (origin.source, origin.dim)
        for symbol in symbols
        if isinstance(origin := symbol.origin, SizeOf) and isinstance(origin.source, Source)
    ]
    if len(places) < len(symbols):
        return frozenset()
    return frozenset(
        tuple(shapes[source][dim] for source, dim in places)
        for shapes in known
        if all(source in shapes for source, _ in places)
    )


class SizeCompiler:
    """Compiles a symbolic graph for the sizes that occur. `run` is the executable for all of them:
    it looks up the size tuple of a call and asks `missed` for a new one.
    """

    __slots__ = (
        *("_alone", "_builders", "_compile", "_compiled", "_expected", "_fixed", "_is_sized"),
        *("_joints", "_later", "_lock", "_op_by_op", "_options", "_static", "_symbols", "_traced"),
        *("in_parts", "run"),
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
        self._builders, self._options, self._static = builders, options, static
        self._joints: list[SizedJoint | SizedBackend] = []
        self._fixed: set[Symbol] = set()  # constants of each joint graph
        self._alone: dict[SizeTuple, Executable] = {}  # of tuples that no joint graph serves
        self._compiled = 0  # how many compiles were tried
        self.in_parts = False  # whether any executable consists of several (CompiledGraph.in_parts)
        is_native = options.backend == "native" and not options.tunes
        self._is_sized = is_native or callable(options.backend)
        self._op_by_op: list[Executable] = []  # at most one item, built at first use
        self._lock = RLock()
        self._symbols, self._expected = tuple(places_of(traced)), expected_of(traced)
        places = tuple(places_of(traced).values())
        state = SizedState(traced.graph, traced.inputs, traced.mutated)
        self.run: BySizes = by_sizes(places, self.missed, SIZES_KEPT, tuple(static), state)

    def add(self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording) -> None:
        """Compile for these sizes and add the executable to `run`."""
        self._add(values, self.compile_for(values, inputs, record))

    def _add(self, values: SizeTuple, run: Executable) -> None:
        """Add an executable to `run`, and to what another process makes of it if it is alone."""
        if values in self._alone:
            add_alone(self.run, values, run)
        else:
            self.run.add(values, run)

    def compile_for(
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """Return the executable of one size tuple."""
        joint = None if values in self._static else self._joint_of(values, inputs, record)
        if joint is None:
            run = self._alone[values] = self._compile_alone(values, inputs, record)
            return run
        self.in_parts = self.in_parts or joint.in_parts
        before = joint.compiled
        made = joint.made(values, len(inputs), record)
        self._compiled += joint.compiled - before
        if not joint.is_ready(values):  # its kernels are for this tuple alone
            self._alone[values] = made.run
        if made.template is not None:
            add_template(self.run, self._checks(made), made.template, self._verify_of(joint))
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
        """Return the joint graph whose predicates these values pass, a new one if needed; None if
        this size tuple must be compiled alone.
        """
        for joint in self._joints:
            if joint.holds(values):
                return joint
        options = self._options
        if not self._is_sized or len(self._joints) >= options.recompile_limit:
            return None

        def make(fixed: Collection[Symbol]) -> SizedJoint | SizedBackend:
            if callable(options.backend):
                return SizedBackend(options.backend, self._traced, values, inputs, record, fixed)
            return SizedJoint(self._traced, values, self._builders, options, record, fixed)

        made = for_all_sizes("joint for all sizes", values, make, record, self._fixed)
        if made is None:
            self._is_sized = False
        else:
            self._joints.append(made)
        return made

    def _compile_alone(
        self, values: SizeTuple, inputs: Sequence[torch.Tensor], record: Recording
    ) -> Executable:
        """Compile the graph for these sizes alone, like a static one."""
        self._compiled += 1
        known = dict[Expr, object](zip(self._symbols, values, strict=True))
        made = compile_at(self._traced, known, inputs, self._compile, record)
        self.in_parts = self.in_parts or made.in_parts
        return made.run

    @property
    def _graph(self) -> Executable:
        """Return the graph op by op; built when needed, as generating its code is slow."""
        if not self._op_by_op:
            self._op_by_op.append(op_by_op(self._traced))
        return self._op_by_op[0]

    def missed(self, values: SizeTuple, inputs: Sequence[torch.Tensor]) -> Executable:
        """Return the executable for a call of these sizes, which are new or were evicted."""
        with self._lock:
            if values in self._alone:
                run = self._alone[values]
            elif not self.is_expected(values):  # op by op, an operation raises eager's error
                return self._graph
            elif self._is_ready(values) or self._compiled < self._options.recompile_limit:
                run = self._compile_in_call(values, inputs)
            else:
                return self._graph
            self._add(values, run)
            return run

    def is_expected(self, values: SizeTuple) -> bool:
        """Return whether eager accepts these data-dependent sizes. Raises SizesDiffer if the trace
        does not cover them.
        """
        known = dict[Expr, object](zip(self._symbols, values, strict=True))
        for symbol, value in zip(self._symbols, values, strict=True):
            if isinstance(symbol.origin, DataSize) and not symbol.range.has(value):
                raise SizesDiffer(f"{value} is a size that the trace does not cover")
        return all(is_true_of(op, left, right, known) for op, left, right in self._expected)

    def _is_ready(self, values: SizeTuple) -> bool:
        """Return whether the executable needs no compiler: it takes microseconds to build."""
        known = any(joint.is_ready(values) for joint in self._joints)
        return known and values not in self._static

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
            differs = next(
                (e for e in (error, error.__cause__) if isinstance(e, SizesDiffer)), None
            )
            if differs is None:
                warn(failed.report(f"{record.name} at sizes {values}", "runs op by op"))
            run = self._alone[values] = self._graph if differs is None else _raising(differs)
            return run


def _raising(error: SizesDiffer) -> Executable:
    """Return an executable that raises: the frame then runs in eager, unless its graph writes to
    inputs.
    """

    def run(*inputs: torch.Tensor) -> tuple[object, ...]:
        raise error

    return run
