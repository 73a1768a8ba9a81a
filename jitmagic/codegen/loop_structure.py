"""Derives the loop structure of a fused nest that every renderer starts from.

In: a Nest of the schedule and the buffers. Out: a Structure, the same computation with
  - memory offsets: every Load and Store has ONE index expression, the flat element offset into its
    buffer;
  - fewer axes: axes of extent 1 are gone, neighbours that are contiguous everywhere are collapsed;
  - passes: for every point of `outer` the passes run one after the other. A pass loops over its
    axes, accumulates its reductions and performs its stores; a reduction is used only by later
    passes, and its result depends on outer axes alone. Stores without inner axes form the last
    pass, whose axes are ().

Invariant: running the passes in order computes what the interpreter computes for the nest. A store
into a buffer that the nest also reads runs in the last pass, so that all loads see the contents
from before the nest. Reductions that depend on the axes of a pass stay inside values; `passes_in`
splits them in turn. A scan is computed by each pass that uses it, along the pass's only axis.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from ..lazy_dataclass import dataclass, replace
from ..loops.expr import (
    Expr,
    Symbol,
    ValueIndex,
    axes_of,
    leaves,
    position,
)
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Axis,
    Buffer,
    IndexValue,
    Load,
    Nest,
    Pick,
    Reduction,
    Scan,
    Store,
    Value,
    binders,
    walk,
)
from ..schedule.dependencies import store_values
from ..schedule.score import EXPENSIVE, op_cost
from ..schedule.substitution import Rebuilder
from ..schedule.tile import drop_unit_axes
from ..symbols.context import Context
from ..symbols.size import Dimension, Size
from ..symbols.symbolic_numbers import symbols_of
from .collapsed_axes import with_collapsed_axes

__all__ = [
    "Pass",
    "Structure",
    "by_value",
    "inside",
    "nest_arguments",
    "nest_symbols",
    "offsets_in",
    "passes_in",
    "picks_of",
    "scans_of",
    "structure",
]


@dataclass(frozen=True, slots=True)
class Pass:
    """Describes one loop over `axes`; `saved` are the values to save in scratch rows for later
    passes, `loaded` scans that an earlier pass has saved.
    """

    axes: tuple[Axis, ...]
    reductions: tuple[Reduction, ...] = ()
    stores: tuple[Store, ...] = ()
    saved: tuple[Value, ...] = ()
    loaded: tuple[Value, ...] = ()

    @property
    def roots(self) -> tuple[Value, ...]:
        """Return all values that are evaluated at each point."""
        return (*(r.value for r in self.reductions), *store_values(self.stores), *self.saved)


@dataclass(frozen=True, slots=True)
class Structure:
    """Describes the loops of one kernel. `arguments`: the nest's buffers, written ones last;
    `free`: every value's axes.
    """

    name: str
    origins: tuple[str, ...]
    outer: tuple[Axis, ...]
    passes: tuple[Pass, ...]
    arguments: tuple[str, ...]
    written: frozenset[str]
    free: Mapping[Value, frozenset[Axis]]
    symbols: tuple[Symbol, ...] = ()  # the symbols of dynamic sizes
    context: Context | None = None  # which has the symbols' facts and guards

    @property
    def summed(self) -> tuple[Axis, ...]:
        """Return the outer axes over which stores of mode "total" sum."""
        sums = (store for part in self.passes for store in part.stores if store.mode == "total")
        kept = [axes_of(store.index[0]) for store in sums]
        return tuple(axis for axis in self.outer if any(axis not in axes for axes in kept))


def structure(nest: Nest, buffers: Mapping[str, Buffer]) -> Structure:
    """Flatten the indexes, collapse the axes, split into passes."""
    flat = with_collapsed_axes(_flatten(drop_unit_axes(nest), buffers))
    nodes = walk(store_values(flat.stores))
    free = value_axes(nodes)
    read = {node.buffer for node in nodes if isinstance(node, Load)}
    written = frozenset(store.buffer for store in flat.stores)
    mutated = written & read
    passes = _with_saved(passes_in(frozenset(flat.outer), flat.stores, (), free, mutated), free)
    symbols = nest_symbols(nest, buffers)
    return Structure(
        flat.name,
        flat.origins,
        flat.outer,
        passes,
        nest_arguments(nest),
        written,
        free,
        symbols,
        _context_of(nest, buffers) if symbols else None,
    )


def nest_arguments(nest: Nest) -> tuple[str, ...]:
    """Return the buffers a kernel takes, in argument order: those only read, then those written."""
    nodes = walk(store_values(nest.stores))
    read = dict.fromkeys(node.buffer for node in nodes if isinstance(node, Load))
    written = dict.fromkeys(store.buffer for store in nest.stores)
    return (*(name for name in read if name not in written), *written)


def by_value(kernel: Structure, buffers: Mapping[str, Buffer]) -> tuple[int, ...]:
    """Return the positions of the arguments that are CPU scalars."""
    # A nest stores on a GPU only.
    device = buffers[kernel.arguments[-1]].device
    return tuple(n for n, name in enumerate(kernel.arguments) if buffers[name].device != device)


def offsets_in(kernel: Structure) -> list[Expr]:
    """Return the memory offsets of all loads and stores, in elements."""
    loads = [part for node in kernel.free if isinstance(node, Load) for part in node.index]
    stores = [store for each in kernel.passes for store in each.stores]
    return loads + [part for store in stores for part in store.index]


def nest_symbols(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[Symbol, ...]:
    """Return the size symbols that a kernel takes, in the order of its arguments."""
    nodes = walk(store_values(nest.stores))
    sizes = _sizes(nest, buffers)
    exprs = [part for store in nest.stores for part in store.index]
    exprs += [part for node in nodes if isinstance(node, Load) for part in node.index]
    exprs += [node.expr for node in nodes if isinstance(node, IndexValue)]
    read = [leaf for expr in exprs for leaf in leaves(expr)]
    sizes += [leaf.extent for leaf in read if isinstance(leaf, ValueIndex)]
    found = {leaf for leaf in read if isinstance(leaf, Symbol)}
    found.update(s for size in sizes if isinstance(size, Size) for s in symbols_of(size.expr))
    return tuple(sorted(found, key=lambda symbol: (len(symbol.name), symbol.name)))


def _context_of(nest: Nest, buffers: Mapping[str, Buffer]) -> Context | None:
    """Return the sizes' context; None if the symbols are in indexes alone."""
    sizes = (size for size in _sizes(nest, buffers) if isinstance(size, Size))
    return next((size.context for size in sizes), None)


def _sizes(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Dimension]:
    """Return the sizes of a nest's buffers and loops."""
    named = [buffers[name] for name in nest_arguments(nest)]
    sizes: list[Dimension] = [size for b in named for size in (*b.shape, *b.stride)]
    return sizes + [axis.extent for axes in binders(nest) for axis in axes]


def _flatten(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """Replace multi-dimensional indexes by one element offset per access."""

    def offset(name: str, index: Sequence[Expr]) -> tuple[Expr, ...]:
        return (position(index, buffers[name].stride),)

    rebuild = Rebuilder(on_load=lambda load: replace(load, index=offset(load.buffer, load.index)))
    stores = []
    for store in nest.stores:
        index = offset(store.buffer, [rebuild.expr(part) for part in store.index])
        stores.append(replace(store, index=index, value=rebuild.value(store.value)))
    return replace(nest, stores=tuple(stores))


def passes_in(
    bound: frozenset[Axis],
    stores: Sequence[Store],
    roots: Sequence[Value],
    free: Mapping[Value, frozenset[Axis]],
    mutated: frozenset[str] = frozenset(),
    ready: frozenset[Value] = frozenset(),
) -> tuple[Pass, ...]:
    """Order the reductions below stores and roots whose free axes are all `bound`, except
    `ready`.
    """
    levels = _levels(bound, (*store_values(stores), *roots), free, ready)
    plan: dict[tuple[int, tuple[Axis, ...]], tuple[list[Reduction], list[Store]]] = {}
    for node, level in levels.items():
        if isinstance(node, Reduction) and node not in ready and free[node] <= bound:
            plan.setdefault((level, node.axes), ([], []))[0].append(node)
    deepest = max((level for level, _ in plan), default=0)
    for store in stores:
        level = 1 + max((levels.get(v, 0) for v in store_values((store,))), default=0)
        # Loads must see the memory from before the nest, so a store that overwrites it comes last.
        if store.buffer in mutated or not store.inner:
            level = deepest + 1
        shared = [at for at, axes in plan if at >= level and axes == store.inner]
        plan.setdefault((min(shared, default=level), store.inner), ([], []))[1].append(store)
    order = sorted(plan, key=lambda key: (key[0], not key[1], tuple(a.name for a in key[1])))
    return tuple(Pass(key[1], tuple(plan[key][0]), tuple(plan[key][1])) for key in order)


def _levels(
    bound: frozenset[Axis],
    roots: Sequence[Value],
    free: Mapping[Value, frozenset[Axis]],
    ready: frozenset[Value],
) -> dict[Value, int]:
    """Return for every node the number of dependent reductions of this scope that precede it."""
    levels: dict[Value, int] = {}
    for node in walk(tuple(roots)):
        if node in ready:
            levels[node] = 0
            continue
        level = max((levels[part] for part in node.operands), default=0)
        here = isinstance(node, Reduction) and free[node] <= bound
        levels[node] = level + 1 if here else level
    return levels


def _with_saved(
    passes: tuple[Pass, ...], free: Mapping[Value, frozenset[Axis]]
) -> tuple[Pass, ...]:
    """Mark expensive values that a later pass over the same axes uses again."""
    computed: dict[tuple[Axis, ...], dict[Value, int]] = {}
    result = list(passes)
    for number, pass_ in enumerate(passes):
        if not pass_.axes:
            continue
        known = computed.setdefault(pass_.axes, {})
        for value in _costly_again(pass_, known, free):
            first = known[value]
            if value not in result[first].saved:
                result[first] = replace(result[first], saved=(*result[first].saved, value))
        for node in inside(pass_, free):
            known.setdefault(node, number)
    return tuple(result)


def inside(pass_: Pass, free: Mapping[Value, frozenset[Axis]]) -> list[Value]:
    """Return the nodes evaluated at every point of the pass."""
    axes = frozenset(pass_.axes)
    return [node for node in _walk_point(pass_.roots) if free[node] & axes]


def scans_of(pass_: Pass, known: Collection[Value] = ()) -> list[Scan]:
    """Return the scans that a pass computes along its axis, operands first; not those below values
    that are `known`.
    """
    nodes = _walk_point(pass_.roots, {*known, *pass_.loaded})
    # In a set their order, and so the kernel's text, would differ from process to process.
    below = dict.fromkeys(n for n in nodes if isinstance(n, Scan) and n.axis in pass_.axes)
    return [node for node in walk(tuple(below)) if isinstance(node, Scan) and node in below]


def picks_of(pass_: Pass) -> list[Pick]:
    """Return the elements of rows in order that a pass reads along its axes."""
    nodes = _walk_point(pass_.roots)
    return [n for n in nodes if isinstance(n, Pick) and axes_of(n.rank) <= {*pass_.axes}]


def _walk_point(roots: Iterable[Value], known: Container[Value] = ()) -> list[Value]:
    """Return nodes below the roots without entering reductions, which are loops of their own, or
    `known` values.
    """
    seen: dict[Value, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen or node in known:
            continue
        seen[node] = None
        if not isinstance(node, Reduction):
            stack.extend(node.operands)
    return list(seen)


def _costly_again(
    pass_: Pass, known: Mapping[Value, int], free: Mapping[Value, frozenset[Axis]]
) -> list[Value]:
    """Return the topmost nodes that an earlier pass computed and that cost more to repeat than to
    load.
    """
    axes = frozenset(pass_.axes)
    costly: dict[Value, None] = {}
    seen: set[Value] = set()
    stack = list(pass_.roots)
    while stack:
        node = stack.pop()
        if node in seen or not free[node] & axes:
            continue
        seen.add(node)
        if node in known and _point_cost(node, axes, free) >= EXPENSIVE:
            costly[node] = None
        elif not isinstance(node, Reduction):
            stack.extend(node.operands)
    return list(costly)


def _point_cost(value: Value, axes: frozenset[Axis], free: Mapping[Value, frozenset[Axis]]) -> int:
    """Return the cost of the nodes below `value` that vary along `axes`."""
    # A nested loop always counts as expensive.
    nodes = [node for node in _walk_point((value,)) if free[node] & axes]
    if any(isinstance(node, Reduction) for node in nodes):
        return EXPENSIVE
    return sum(op_cost(node) for node in nodes)
