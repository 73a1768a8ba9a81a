"""Rewrites values: renames or binds axes, replaces loads, and avoids capture of bound axes.

In: values (shared graphs of frozen nodes). Out: values of the same meaning under the substitution;
unchanged nodes are returned as the same objects, so sharing survives. A Reduction binds its axes:
an axis that it binds is not replaced inside it, and its own axes are renamed when a substituted
expression would be captured by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from ..loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    ValueIndex,
    axes_of,
    reapply,
    rebuild,
)
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Cast,
    Compute,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Pick,
    Reduction,
    Scan,
    Store,
    Value,
    run_time_values,
    walk,
)
from ..symbols.expr import Leaf

__all__ = ["Rebuilder", "expr_axes", "free_axes", "fresh_axis", "rewrite_values"]

# Unique in the process: axes of different programs never meet, and tile.py renames them all.
_FRESH = count()


def fresh_axis(like: Axis, extent: int) -> Axis:
    """Return an axis that no nest has; tile.py gives the final names."""
    return Axis(f"{like.name}.{next(_FRESH)}", extent)


class Rebuilder:
    """Applies one substitution to any number of values (results are cached)."""

    def __init__(
        self,
        bindings: Mapping[Axis, Expr] | None = None,
        on_load: Callable[[Load], Value] | None = None,
        on_expr: Callable[[Expr], Expr] | None = None,
        on_axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]] | None = None,
        on_reduction: Callable[[Reduction], Value] | None = None,
        on_cast: Callable[[Cast], Value] | None = None,
        on_value: Callable[[Value], Value] | None = None,
        made: Mapping[Value, Value] | None = None,  # values with given replacements
    ) -> None:
        self.bindings = {a: e for a, e in (bindings or {}).items() if e != AxisVar(a)}
        self._on_load, self._on_expr, self._on_axes = on_load, on_expr, on_axes
        self._on_reduction, self._on_cast, self._on_value = on_reduction, on_cast, on_value
        captured = [expr_axes(e) for e in self.bindings.values()]
        self._affected = frozenset(self.bindings).union(*captured)  # a loop over these is renamed
        hooks = on_load, on_expr, on_axes, on_reduction, on_cast, on_value
        self._idle = not (self.bindings or made or any(hooks))
        self._done: dict[Value, Value] = dict(made or {})
        self._exprs: dict[Expr, Expr] = {}
        self._inner: dict[object, tuple[Rebuilder, tuple[Axis, ...]]] = {}

    def store(self, store: Store) -> Store:
        """Rewrite a store; it binds its inner axes, as a reduction does."""
        if self._idle:
            return store
        if not self._affected.isdisjoint(store.inner):
            free = free_axes(store.value).union(*(expr_axes(part) for part in store.index))
            inside, inner = self._scope(store.inner, free)
        else:
            inside, inner = self, store.inner
        if self._on_axes is not None:
            inner = self._on_axes(inner)
        index = inside.index(store.index)
        return Store(store.buffer, inner, index, inside.value(store.value), store.mode)

    def value(self, root: Value) -> Value:
        """Rewrite a value."""
        # Iterative, because user graphs may be deeper than Python's recursion limit.
        if self._idle:
            return root
        done, stack = self._done, [root]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            is_scope = isinstance(node, Reduction) and self._clashes(node)
            pending = [] if is_scope else [part for part in node.operands if part not in done]
            if pending:
                stack.extend(reversed(pending))
                continue
            stack.pop()
            made = self._remake(node)
            done[node] = made if self._on_value is None else self._on_value(made)
        return done[root]

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Rewrite the expressions of an index."""
        return tuple([self._exprs.get(part) or self.expr(part) for part in index])

    def expr(self, expr: Expr) -> Expr:
        """Rewrite an index expression."""
        changes = self.bindings or run_time_values(expr)
        rewritten = rebuild(expr, self._substitute) if changes else expr
        if self._on_expr is not None:
            rewritten = self._on_expr(rewritten)
        self._exprs[expr] = rewritten
        return rewritten

    def _substitute(self, leaf: Leaf) -> Expr:
        match leaf:
            case AxisVar(axis):
                return self.bindings.get(axis, leaf)
            case ValueIndex(value, extent):
                return ValueIndex(self.value(value), extent)
            case Apply(args=args):
                return reapply(leaf, [rebuild(part, self._substitute) for part in args])
        return leaf

    def _clashes(self, node: Reduction) -> bool:
        return not self._affected.isdisjoint(node.axes)

    def _remake(self, node: Value) -> Value:
        match node:
            case Load():
                return self._load(node)
            case Compute(args=args):
                new = tuple([self._done[arg] for arg in args])
                return node if new == args else Compute(node.op, new, node.dtype)
            case Cast(value=value):
                inner = self._done[value]
                cast = node if inner is value else Cast(inner, node.dtype)
                return cast if self._on_cast is None else self._on_cast(cast)
            case Reduction():
                return self._reduction(node)
            case Pick():
                return self._pick(node)
            case Scan(axis=axis, value=value):
                axis, inner = self._renamed(axis), self._done[value]
                same = axis is node.axis and inner is value
                return node if same else Scan(node.op, axis, inner, node.dtype)
            case IndexValue(expr=expr):
                return IndexValue(self.expr(expr), node.dtype)
        return node

    def _pick(self, node: Pick) -> Pick:
        row, rank = self._done[node.row], self.expr(node.rank)
        if row is node.row and rank == node.rank:
            return node
        assert isinstance(row, Reduction)
        return Pick(row, rank, node.part, node.dtype)

    def _renamed(self, axis: Axis) -> Axis:
        """Return the new name of a scan's axis: legality.py lets no other expression replace it."""
        found = self.bindings.get(axis, AxisVar(axis))
        assert isinstance(found, AxisVar)
        return found.axis

    def _load(self, node: Load) -> Value:
        index = self.index(node.index)
        mask = None if node.mask is None else self._done[node.mask]
        if index != node.index or mask is not node.mask:
            node = Load(node.buffer, index, node.dtype, mask, node.fill)
        return node if self._on_load is None else self._on_load(node)

    def _reduction(self, node: Reduction) -> Value:
        axes = node.axes if self._on_axes is None else self._on_axes(node.axes)
        if not self._clashes(node):
            value = self._done[node.value]
        else:
            inside, axes = self._scope(node.axes, free_axes(node.value))
            value = inside.value(node.value)
        if value is not node.value or axes != node.axes:
            node = Reduction(node.op, axes, value, node.dtype)
        return node if self._on_reduction is None else self._on_reduction(node)

    def _scope(
        self, axes: tuple[Axis, ...], free: frozenset[Axis]
    ) -> tuple[Rebuilder, tuple[Axis, ...]]:
        """Return the substitution inside a loop over `axes` whose body depends on `free`, and its
        new axes.
        """
        wanted = frozenset(a for a in self.bindings if a in free and a not in axes)
        # Cached, so that equal reductions stay the same object: a nest then computes them once.
        if (axes, wanted) not in self._inner:
            bindings = {axis: self.bindings[axis] for axis in wanted}
            captured = {axis for e in bindings.values() for axis in expr_axes(e)}
            new = tuple(fresh_axis(a, a.extent) if a in captured else a for a in axes)
            bindings.update({a: AxisVar(b) for a, b in zip(axes, new, strict=True)})
            inside = Rebuilder(
                bindings, on_load=self._on_load, on_expr=self._on_expr, on_axes=self._on_axes,
                on_reduction=self._on_reduction, on_cast=self._on_cast, on_value=self._on_value,
            )  # fmt: skip
            self._inner[axes, wanted] = (inside, new)
        return self._inner[axes, wanted]


def rewrite_values(program: LoopProgram, change: Callable[[Value], Value]) -> LoopProgram:
    """Return the program with `change(value)` in place of each value, operands first; masks and
    run-time indexes are such values too. `change` returns its argument for a value that stays.
    """
    rebuilder = Rebuilder(on_value=change)
    steps = [
        replace(step, stores=tuple(map(rebuilder.store, step.stores)))
        if isinstance(step, Nest)
        else step
        for step in program.steps
    ]
    return replace(program, steps=tuple(steps))


def expr_axes(expr: Expr) -> frozenset[Axis]:
    """Return all axes an expression depends on, through run-time indexes too."""
    return axes_of(expr).union(*map(free_axes, run_time_values(expr)))


def free_axes(value: Value) -> frozenset[Axis]:
    """Return the axes that one value depends on."""
    return value_axes(walk((value,)))[value]
