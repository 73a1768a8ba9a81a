"""Templates: one ATen graph compiled once for all sizes of its inputs.

Comes in: an ATen graph whose specs have Sizes, and the values of their symbols in this call. Goes
out: a Template, one set of kernels, from which an executable for other values is made without a
compiler. What the backend decides for these values is no guard of the frame: the caller asks
`holds`, and where the answer is no, compiles for those values. A symbol that the backend cannot
leave open is a constant of the template, which then holds for its one value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, GraphModule, Node

from .codegen import PlanTemplate, render_template
from .graph.concrete import spec_at
from .loops.lower import lower
from .loops.verify import verify
from .options import Options
from .runtime.load import load_kernels
from .runtime.native import KernelEntry, make_executable
from .schedule import schedule
from .spec import TensorSpec
from .symbols.context import Specialize
from .symbols.expr import Expr
from .symbols.interval import Interval
from .symbols.predicates import Predicates
from .symbols.scalar import Symbol
from .symbols.size import Dimension, Size, value_of
from .target import Target

__all__ = ["Template", "compile_template"]

Executable = Callable[..., tuple[Any, ...]]
_ATTEMPTS = itertools.count()


@dataclass(frozen=True, slots=True)
class Template:
    """Kernels that are loaded, and the plans that launch them."""

    plans: PlanTemplate
    entries: Mapping[str, KernelEntry]
    predicates: Predicates

    def holds(self, values: tuple[int, ...]) -> bool:
        """Whether it was made for these values too, in the order of its symbols."""
        return self.predicates.hold(values)

    def instantiate(self, values: tuple[int, ...]) -> Executable:
        """The executable for inputs of these sizes, of which `holds` is true."""
        return make_executable(self.plans.plan(values), self.entries)


def compile_template(
    gm: GraphModule, name: str, hints: Mapping[Symbol, int], target: Target, options: Options
) -> Template:
    """Compile the graph for all values of its symbols that nothing speaks against. Raises
    CompileFailed where the tier's kernels are for one size.
    """
    fixed: set[str] = set()
    while True:
        try:
            return _template(gm, name, hints, fixed, target, options)
        except Specialize as found:
            names = {symbol.name for symbol in found.symbols}
            if names <= fixed:
                raise
            fixed |= names


def _template(
    gm: GraphModule,
    name: str,
    hints: Mapping[Symbol, int],
    fixed: Collection[str],
    target: Target,
    options: Options,
) -> Template:
    own = {symbol: _own(symbol, hint, fixed) for symbol, hint in hints.items()}
    predicates = Predicates({own[symbol]: hint for symbol, hint in hints.items()})
    known: dict[Expr, Dimension] = {
        symbol: hint if symbol.name in fixed else Size(own[symbol], predicates.context)
        for symbol, hint in hints.items()
    }
    program = lower(_moved(gm, known), name)
    if options.verify:
        verify(program)
    fused = schedule(program, target, options)
    if options.verify:
        verify(fused.program)
    plans, source = render_template(fused, target, predicates.symbols)
    entries = {} if source is None else load_kernels(source, target, options).entries
    return Template(plans, entries, predicates)


def _own(symbol: Symbol, hint: int, fixed: Collection[str]) -> Symbol:
    """A symbol of this attempt only: sizes that are equal are interchangeable, so those of another
    Context must not be equal.
    """
    interval = Interval(hint, hint) if symbol.name in fixed else symbol.range
    return Symbol(symbol.name, int, interval, (symbol.origin, next(_ATTEMPTS)))


def _moved(gm: GraphModule, known: dict[Expr, Dimension]) -> GraphModule:
    """A copy of the graph whose symbols are what `known` says."""

    def moved(part: Any) -> Any:
        match part:
            case Size():
                return value_of(part, known)
            case TensorSpec():
                return spec_at(part, known)
            case tuple() | list():
                return type(part)(moved(item) for item in part)
            case dict():
                return {key: moved(item) for key, item in part.items()}
        return part

    copies: dict[Node, Node] = {}
    graph = Graph()
    for node in gm.graph.nodes:
        copy = copies[node] = graph.node_copy(node, lambda n: copies[n])
        copy.meta["spec"] = moved(node.meta.get("spec"))
        if node.op == "call_function":
            copy.args, copy.kwargs = moved(tuple(copy.args)), moved(dict(copy.kwargs))
    return GraphModule(gm, graph)
