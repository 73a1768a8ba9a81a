"""Templates: one ATen graph compiled once for all sizes of its inputs.

Comes in: an ATen graph whose specs have Sizes, and the values of their symbols in this call. Goes
out: a Template, one set of kernels, from which an executable for other values is made without a
compiler. What the backend decides for these values is no guard of the frame: the caller asks
`holds`, and where the answer is no, compiles for those values. A symbol that the backend cannot
leave open is a constant of the template, which then holds for its one value.

Templates are those of one frame. Sizes are read off the frame's ATen graphs at two vectors of them
(`graph/symbolic/unify_graphs.py`); a template serves another vector only where the graph that was
made for it by itself is the template's at these values. So nothing that joint, partition or a
decomposition decides by a size can go unnoticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from typing import Protocol, TypeVar

from torch.fx import GraphModule

from ..codegen import render_template
from ..codegen.plan import KernelSource, Plan
from ..codegen.plan_template import PlanTemplate
from ..graph.symbolic.concrete import graph_at
from ..graph.symbolic.unify_graphs import Differs, fits, generalised
from ..loops.lower import lower
from ..loops.verify import verify
from ..options import Options
from ..records import LazyPayload, Recording
from ..runtime.cudagraph import with_cuda_graphs
from ..runtime.load import Loaded, load_template
from ..runtime.native import Executable, SizeTemplate
from ..schedule import schedule
from ..symbols.context import Specialize
from ..symbols.expr import Expr
from ..symbols.interval import Interval
from ..symbols.predicates import Predicates
from ..symbols.reading import Readings
from ..symbols.scalar import Symbol
from ..symbols.size import Dimension, Size
from ..target import Target
from .profiler_names import call_places, titles_of

__all__ = ["Template", "Templates", "compile_template", "for_all_sizes"]

Vector = tuple[int, ...]
_ATTEMPTS = itertools.count()


class _ForSome(Protocol):
    """What was made for the values that its predicates are true of."""

    @property
    def predicates(self) -> Predicates: ...


ForSome = TypeVar("ForSome", bound=_ForSome)


def for_all_sizes(
    title: str, values: Vector, make: Callable[[], ForSome], record: Recording
) -> ForSome | None:
    """What `make` makes of sizes that are symbols; None: a stage wants ints, of which it takes
    those of one call. The record says which it is.
    """
    with record.stage(title) as stage:
        try:
            made = make()
        except Exception as error:  # whatever a stage raised
            stage.keep(f"only for {values}: {type(error).__name__}: {error}")
            return None
        is_right = made.predicates.holds_for(values)
        stage.keep(f"{'' if is_right else f'not for {values}: '}{made.predicates}")
        return made


@dataclass(frozen=True, slots=True)
class Template:
    """Kernels that are loaded, and the plan that launches them. `replays`: puts what runs at some
    sizes behind CUDA graphs, which are recorded for those alone.
    """

    plan: SizeTemplate
    predicates: Predicates
    replays: Callable[[Executable, Vector], Executable] | None = None

    def holds(self, values: tuple[int, ...]) -> bool:
        """Whether it was made for these values too, in the order of its symbols."""
        return self.predicates.holds_for(values)

    def instantiate(self, values: tuple[int, ...]) -> Executable:
        """The executable for inputs of these sizes, of which `holds` is true."""
        run: Executable = self.plan.at(values)
        return run if self.replays is None else self.replays(run, values)

    @property
    def is_native(self) -> bool:
        """Whether executables for other sizes are made of `plan` alone."""
        return self.replays is None


def compile_template(
    gm: GraphModule,
    name: str,
    hints: Mapping[Symbol, int],
    target: Target,
    options: Options,
    record: Recording,
    supposes: bool = True,
) -> Template:
    """Compile the graph for all values of its symbols that nothing speaks against: with `supposes`
    for those that are like these. Raises CompileFailed where the tier's kernels are for one size.
    """
    fixed: set[Symbol] = set()
    while True:
        try:
            predicates = _predicates(hints, fixed, supposes)
            return _template(gm, name, hints, predicates, target, options, record)
        except Specialize as found:
            symbols = {symbol.origin[0] for symbol in found.symbols}  # type: ignore[index]
            if symbols <= fixed:
                raise
            fixed |= symbols


def _template(
    gm: GraphModule,
    name: str,
    hints: Mapping[Symbol, int],
    predicates: Predicates,
    target: Target,
    options: Options,
    record: Recording,
) -> Template:
    known: dict[Expr, Dimension] = {
        symbol: hint if own.range.low == own.range.high else Size(own, predicates.context)
        for (symbol, hint), own in zip(hints.items(), predicates.symbols, strict=True)
    }
    with record.stage(f"{name}: lower") as stage:
        program = stage.keep(lower(graph_at(gm, known), name))
        if options.verify:
            verify(program)
    with record.stage(f"{name}: schedule") as stage:
        fused = stage.keep(schedule(program, target, options))
        if options.verify:
            verify(fused.program)
    with record.stage(f"{name}: render") as stage:
        plans, source = render_template(fused, target, predicates.symbols)
        stage.keep(LazyPayload(partial(_shown, plans, tuple(hints.values()), source)))
    titles = titles_of(fused.program, gm, record.title)
    plan = replace(plans.sized, titles=titles, call_lines=call_places(fused.program, gm))
    with record.stage(f"{name}: load") as stage:
        loaded = load_template(plan, source, predicates.symbols, target, options, stage.say)
        if source is not None:
            stage.keep(Loaded(tuple, loaded.cached, loaded.kernels))
    record.kernels += loaded.kernels
    record.cache_hits += loaded.kernels if loaded.cached else 0
    graph_pool = loaded.graph_pool

    def replays(run: Executable, values: Vector) -> Executable:
        return with_cuda_graphs(run, plans.plan(values), graph_pool)

    return Template(loaded.plan, predicates, None if graph_pool is None else replays)


def _shown(
    plans: PlanTemplate, values: Vector, source: KernelSource | None
) -> tuple[Plan, KernelSource | None]:
    """What `render` gives for these values."""
    return plans.plan(values), source


def _predicates(
    hints: Mapping[Symbol, int], fixed: Collection[Symbol], supposes: bool
) -> Predicates:
    own = {_own(n, symbol, hint, fixed): hint for n, (symbol, hint) in enumerate(hints.items())}
    return Predicates(own, supposes)


def _own(number: int, symbol: Symbol, hint: int, fixed: Collection[Symbol]) -> Symbol:
    """A symbol of this attempt only: sizes that are equal are interchangeable, so those of another
    Context must not be equal. It is a variable of kernels, where the name of an int argument of the
    program's may be taken.
    """
    interval = Interval(hint, hint) if symbol in fixed else symbol.range
    return Symbol(f"s{number}", int, interval, (symbol, next(_ATTEMPTS)))


class Templates:
    """The templates of one frame's graphs, for the symbols of its inputs. `others`: its ATen graphs
    at another vector, `probe`; `exprs`: what the frame computes of its sizes. A graph that is like
    none of these is kept: the next one that differs may be like it.
    """

    __slots__ = (
        *("_exprs", "_limit", "_lock", "_made", "_options", "_others", "_symbols"),
        "compiled",
    )

    def __init__(
        self,
        symbols: Iterable[Symbol],
        exprs: Iterable[Expr],
        probe: Vector,
        others: Sequence[GraphModule],
        options: Options,
    ) -> None:
        self._symbols, self._exprs, self._options = tuple(symbols), tuple(exprs), options
        self._others = [(other, probe) for other in others]
        self._limit = options.recompile_limit * (1 + len(others))
        self._made: list[tuple[GraphModule, Template]] = []
        self._lock = RLock()
        self.compiled = 0  # how many graphs a compiler was asked for, or has to be

    def executable(
        self, gm: GraphModule, name: str, values: Vector, target: Target, record: Recording
    ) -> Executable | None:
        """What runs the graph, which was made for these values; None: it has to be compiled for
        them alone, and the record says why.
        """
        with self._lock:
            known = dict[Expr, int](zip(self._symbols, values, strict=True))
            for symbolic, template in self._made:
                if template.holds(values) and fits(symbolic, gm, dict(known)):
                    with record.stage(f"{name}: plan"):
                        return template.instantiate(values)
            self.compiled += 1
            if self.compiled > self._limit:
                return None
            return self._compile(gm, name, values, target, record)

    def _compile(
        self, gm: GraphModule, name: str, values: Vector, target: Target, record: Recording
    ) -> Executable | None:
        hints = dict(zip(self._symbols, values, strict=True))
        # Sizes that are like no others before them are not like the next ones either.
        supposes = self.compiled <= self._limit // 2
        symbolic: list[GraphModule] = []

        def make() -> Template:
            symbolic.append(self._generalised(gm, hints))
            given = symbolic[0], name, hints, target, self._options, record
            return compile_template(*given, supposes=supposes)

        template = for_all_sizes(f"{name}: for all sizes", values, make, record)
        if template is None:
            self._others.append((gm, values))
            return None
        if not template.holds(values):
            return None
        self._made.append((symbolic[0], template))
        return template.instantiate(values)

    def _generalised(self, gm: GraphModule, hints: Mapping[Symbol, int]) -> GraphModule:
        """The graph with Sizes. Raises Differs where no graph of the other vector is like it."""
        context = Predicates(hints).context
        why = Differs("sizes that are constants of the frame")
        for other, values in self._others:
            there = dict(zip(self._symbols, values, strict=True))
            try:
                return generalised(gm, other, Readings(self._exprs, hints, there), context)
            except Differs as differs:
                why = differs
        raise why
