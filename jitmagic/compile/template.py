"""Compiles one ATen graph once for all sizes of its inputs.

Input: an ATen graph whose specs have Sizes, and the values of their symbols in one call. Output:
Templates. Each Template is one set of kernels, from which an executable for other values is made
without a compiler. A stage may decide by a size, for example tile loops by their trip counts; the
answers are the template's `predicates`. Values that fail those of all templates get another one.
A symbol that a stage needs as an int becomes a constant of the template, which is then valid for
that one value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from threading import RLock
from typing import NamedTuple, TypeVar

from torch.fx import GraphModule

from ..codegen import render_template, verify_kernels
from ..codegen.plan import KernelSource, Plan, PlanTemplate
from ..devices import Target
from ..lazy_dataclass import dataclass, replace
from ..loops.lower import lower
from ..loops.verify import verify
from ..options import Options
from ..protocols import Protocol
from ..records import LazyPayload, Recording
from ..runtime.background_builds import is_interpreted_meanwhile
from ..runtime.load import Loaded, load_template
from ..runtime.native import SizeTemplate
from ..schedule import schedule
from ..symbols.predicates import Predicates, fresh_sizes, read_as_ints
from ..symbols.symbolic_numbers import Symbol
from .graph_passes import edit_loops, with_joined_collectives
from .profiler_names import call_places, titles_of

__all__ = [
    "RenderedTemplate",
    "SizeTuple",
    "Template",
    "Templates",
    "compile_template",
    "for_all_sizes",
    "render_sized",
]

SizeTuple = tuple[int, ...]


class _WithPredicates(Protocol):
    """A result that is valid for the values that pass its predicates."""

    @property
    def predicates(self) -> Predicates: ...


WithPredicates = TypeVar("WithPredicates", bound=_WithPredicates)


def for_all_sizes(
    title: str,
    values: SizeTuple,
    make: Callable[[Collection[Symbol]], WithPredicates],
    record: Recording,
    fixed: set[Symbol],
) -> WithPredicates | None:
    """Return the result of `make` for symbolic sizes, except for symbols that have to be constants,
    which are added to `fixed`; None if it raises for another reason, or is not valid for `values`.
    The record keeps the predicates, or the error.
    """
    with record.stage(title) as stage:
        while True:
            try:
                made = make(fixed)
                break
            except Exception as error:  # any stage may raise
                more = read_as_ints(error) - fixed
                if not more:
                    stage.keep(f"only for {values}: {type(error).__name__}: {error}")
                    return None
                fixed |= more
        is_right = made.predicates.holds_for(values)
        stage.keep(f"{'' if is_right else f'not for {values}: '}{made.predicates}")
        return made if is_right else None


@dataclass(frozen=True, slots=True)
class Template:
    """Loaded kernels and the plan that launches them, for all sizes that pass `predicates`."""

    plan: SizeTemplate
    predicates: Predicates

    def holds(self, values: SizeTuple) -> bool:
        """Return whether the template is valid for these values of its symbols, in their order."""
        return self.predicates.holds_for(values)


class Templates:
    """The templates of one ATen graph. There may be several: a schedule for small sizes has other
    predicates than one for large sizes.
    """

    __slots__ = (
        *("_is_sized", "_lock", "_made", "_name", "_options", "_target", "_training", "_within"),
        *("compiled", "graph"),
    )

    def __init__(
        self,
        graph: GraphModule,
        name: str,
        within: Predicates,
        target: Target,
        options: Options,
        training: bool = False,
    ) -> None:
        """`within`: predicates on the graph's symbols that all values pass. `training`: the graph
        is a backward, or a forward that has one.
        """
        self.graph, self._name, self._within = graph, name, within
        self._target, self._options, self._training = target, options, training
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
        given = self.graph, self._name, self._within, values, self._target, self._options, record
        # Earlier assumptions failed for these sizes; new ones would fail for the next sizes too.
        excludes_sizes = self.compiled <= self._options.recompile_limit // 2
        make = partial(
            compile_template, *given, excludes_sizes=excludes_sizes, training=self._training
        )
        template = for_all_sizes(f"{self._name}: for all sizes", values, make, record, set())
        if template is None:
            self._is_sized = False
        else:
            self._made.append(template)
        return template


class RenderedTemplate(NamedTuple):
    """The plan and the kernels of one graph for all sizes that pass `predicates`."""

    predicates: Predicates
    plan: Plan
    source: KernelSource | None


def render_sized(
    gm: GraphModule,
    name: str,
    within: Predicates,
    values: SizeTuple,
    target: Target,
    options: Options,
    record: Recording,
    fixed: Collection[Symbol] = (),
    *,
    excludes_sizes: bool = True,
    training: bool = False,
) -> RenderedTemplate:
    """Run the stages from lower to render, see `compile_template`."""
    predicates, known = fresh_sizes(
        within.ranges,
        values,
        fixed,
        relations=within.relations,
        renames=True,
        excludes_sizes=excludes_sizes,
    )
    gm = with_joined_collectives(gm, name, options, record, known)
    with record.stage(f"{name}: lower") as stage:
        program = stage.keep(edit_loops(lower(gm, name, known), training, record))
        if options.verify:
            verify(program)
    with record.stage(f"{name}: schedule") as stage:
        fused = stage.keep(schedule(program, target, options))
        if options.verify:
            verify(fused.program)
    with record.stage(f"{name}: render") as stage:
        if options.verify:
            verify_kernels(fused, target)
        is_interpreted = partial(is_interpreted_meanwhile, target=target, options=options)
        plans, source = render_template(fused, target, predicates.symbols, is_interpreted)
        stage.keep(LazyPayload(partial(_shown, plans, values, source)))
    titles = titles_of(fused.program, plans.sized, gm, record.title)
    places = call_places(fused.program, plans.sized, gm)
    plan = replace(plans.sized, titles=titles, call_lines=places)
    return RenderedTemplate(predicates, plan, source)


def compile_template(
    gm: GraphModule,
    name: str,
    within: Predicates,
    values: SizeTuple,
    target: Target,
    options: Options,
    record: Recording,
    fixed: Collection[Symbol] = (),
    *,
    excludes_sizes: bool = True,
    training: bool = False,
) -> Template:
    """Compile the graph for as many values of its symbols as possible, all of which pass `within`;
    those in `fixed` are constants.

    `excludes_sizes`: stages may exclude sizes unlike these where that gives faster kernels
    (`Context.may_assume`). `training` is for passes. Raises Specialize if a stage needs more
    symbols as ints, and CompileFailed if the tier's kernels are for one size.
    """
    given = gm, name, within, values, target, options, record, fixed
    predicates, plan, source = render_sized(
        *given, excludes_sizes=excludes_sizes, training=training
    )
    with record.stage(f"{name}: load") as stage:
        loaded = load_template(plan, source, predicates.symbols, target, options, stage.say)
        if source is not None:
            of_all = loaded.files, loaded.meanwhile, loaded.replayers
            stage.keep(Loaded(tuple, loaded.cached, loaded.kernels, (), *of_all))
    record.kernels += loaded.kernels
    record.cache_hits += loaded.kernels if loaded.cached else 0
    return Template(loaded.plan, predicates)


def _shown(
    plans: PlanTemplate, values: SizeTuple, source: KernelSource | None
) -> tuple[Plan, KernelSource | None]:
    """Return the plan and the source at these values, for explanations."""
    return plans.plan(values), source
