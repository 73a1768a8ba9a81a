"""Compiles one ATen graph once for all sizes of its inputs.

Input: an ATen graph whose specs have Sizes, and the values of their symbols in this call. Output: a
Template, one set of kernels, from which an executable for other values is made without a compiler.
The backend's assumptions on sizes (`Template.predicates`) are not guards of the frame: the caller
checks `holds`, and compiles another template for values that fail. A symbol that a stage needs as
an int becomes a constant of the template, which is then valid for that one value.

`Templates` serves frames whose joint graph cannot be traced with SymInts. It infers a symbolic
graph by comparing the frame's ATen graphs at two size tuples (`graph/symbolic/unify_graphs.py`). A
template serves another tuple only if the graph traced for that tuple equals the template's graph at
these values: a branch on a size in joint, partition or a decomposition would make them differ.
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
from ..graph.symbolic.unify_graphs import GraphsDiffer, fits, unify
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

SizeTuple = tuple[int, ...]
_ATTEMPTS = itertools.count()


class _WithPredicates(Protocol):
    """A result that is valid for the values that pass its predicates."""

    @property
    def predicates(self) -> Predicates: ...


WithPredicates = TypeVar("WithPredicates", bound=_WithPredicates)


def for_all_sizes(
    title: str, values: SizeTuple, make: Callable[[], WithPredicates], record: Recording
) -> WithPredicates | None:
    """Return the result of `make` for symbolic sizes; None if it raises, for example because a
    stage needs ints. The record keeps the predicates, or the error.
    """
    with record.stage(title) as stage:
        try:
            made = make()
        except Exception as error:  # any stage may raise
            stage.keep(f"only for {values}: {type(error).__name__}: {error}")
            return None
        is_right = made.predicates.holds_for(values)
        stage.keep(f"{'' if is_right else f'not for {values}: '}{made.predicates}")
        return made


@dataclass(frozen=True, slots=True)
class Template:
    """Loaded kernels and the plan that launches them, for all sizes that pass `predicates`.

    `replays` wraps the executable of one size tuple in a CUDA graph, which is recorded for that
    tuple alone; None without CUDA graphs.
    """

    plan: SizeTemplate
    predicates: Predicates
    replays: Callable[[Executable, SizeTuple], Executable] | None = None

    def holds(self, values: tuple[int, ...]) -> bool:
        """Return whether the template is valid for these values of its symbols, in their order."""
        return self.predicates.holds_for(values)

    def instantiate(self, values: tuple[int, ...]) -> Executable:
        """Return the executable for inputs of these sizes, which must pass `holds`."""
        run: Executable = self.plan.at(values)
        return run if self.replays is None else self.replays(run, values)

    @property
    def is_native(self) -> bool:
        """Return whether `plan` alone makes executables for other sizes."""
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
    """Compile the graph for as many values of its symbols as possible.

    `supposes`: stages may exclude sizes unlike these where that gives faster kernels
    (`Context.suppose`). Raises CompileFailed if the tier's kernels are for one size.
    """
    # Each Specialize names symbols that a stage needs as ints: they become constants, and the graph
    # is compiled again.
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

    def replays(run: Executable, values: SizeTuple) -> Executable:
        return with_cuda_graphs(run, plans.plan(values), graph_pool)

    return Template(loaded.plan, predicates, None if graph_pool is None else replays)


def _shown(
    plans: PlanTemplate, values: SizeTuple, source: KernelSource | None
) -> tuple[Plan, KernelSource | None]:
    """Return the plan and the source at these values, for explanations."""
    return plans.plan(values), source


def _predicates(
    hints: Mapping[Symbol, int], fixed: Collection[Symbol], supposes: bool
) -> Predicates:
    own = {_own(n, symbol, hint, fixed): hint for n, (symbol, hint) in enumerate(hints.items())}
    return Predicates(own, supposes)


def _own(number: int, symbol: Symbol, hint: int, fixed: Collection[Symbol]) -> Symbol:
    """Return a fresh symbol for this attempt: equal sizes are interchangeable, so symbols of
    another Context must not be equal. It gets a name of its own, as kernels have variables named
    like the program's int arguments.
    """
    interval = Interval(hint, hint) if symbol in fixed else symbol.range
    return Symbol(f"s{number}", int, interval, (symbol, next(_ATTEMPTS)))


class Templates:
    """The templates of one frame's ATen graphs, for the symbols of its inputs.

    `others`: the ATen graphs at another size tuple, `probe`. `exprs`: the expressions of sizes in
    the frame. A graph that can be unified with none of `others` is added to them, for the graphs
    of later size tuples.
    """

    __slots__ = (
        *("_exprs", "_limit", "_lock", "_made", "_options", "_others", "_symbols"),
        "compiled",
    )

    def __init__(
        self,
        symbols: Iterable[Symbol],
        exprs: Iterable[Expr],
        probe: SizeTuple,
        others: Sequence[GraphModule],
        options: Options,
    ) -> None:
        self._symbols, self._exprs, self._options = tuple(symbols), tuple(exprs), options
        self._others = [(other, probe) for other in others]
        self._limit = options.recompile_limit * (1 + len(others))
        self._made: list[tuple[GraphModule, Template]] = []
        self._lock = RLock()
        self.compiled = 0  # how many graphs needed a compiler

    def executable(
        self, gm: GraphModule, name: str, values: SizeTuple, target: Target, record: Recording
    ) -> Executable | None:
        """Return the executable of the graph at these values; None (the record says why) if the
        graph must be compiled for them alone.
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
        self, gm: GraphModule, name: str, values: SizeTuple, target: Target, record: Recording
    ) -> Executable | None:
        hints = dict(zip(self._symbols, values, strict=True))
        # Earlier assumptions failed for these sizes; new ones would fail for the next sizes too.
        supposes = self.compiled <= self._limit // 2
        symbolic: list[GraphModule] = []

        def make() -> Template:
            symbolic.append(self._unified(gm, hints))
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

    def _unified(self, gm: GraphModule, hints: Mapping[Symbol, int]) -> GraphModule:
        """Return the graph with Sizes. Raises GraphsDiffer if it differs in more than sizes from
        every graph at another size tuple.
        """
        context = Predicates(hints).context
        why = GraphsDiffer("sizes that are constants of the frame")
        for other, values in self._others:
            there = dict(zip(self._symbols, values, strict=True))
            try:
                return unify(gm, other, Readings(self._exprs, hints, there), context)
            except GraphsDiffer as differs:
                why = differs
        raise why
