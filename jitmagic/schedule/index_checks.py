"""Ensures that fusion keeps every check of a run-time index: eager raises for an unused index too.

In: a store, the loads that read it, the axes around it. Out: the sentence that says which check
would be lost if the store's value were inlined into its readers, or None. A check is lost in two
ways: the value has checks and is read only partly, or the load's own index is checked and the value
does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..loops.expr import Axis, Expr
from ..loops.ir import IndexValue, Load, Store, Value, landmarks, run_time_operands
from .legality import mixed_radix, solve
from .substitution import free_axes

__all__ = ["has_checks", "lost_check"]

_PARTLY_READ = "an index that may raise would be checked only for the elements that are read"
_UNREAD_INDEX = "it is read at an index that may raise, on which its value does not depend"


def lost_check(
    store: Store, outer: Sequence[Axis], links: Sequence[Load], readers: Sequence[Store]
) -> str | None:
    """Return the check that inlining `store` into `links`, loads of `readers`, would lose, or
    None.
    """
    found = [solve(store, load, (*outer, *store.inner)) for load in links]
    bindings = [binding for binding in found if binding is not None]
    if any(_forgets_index(store.value, binding) for binding in bindings):
        return _UNREAD_INDEX
    if not _is_checked(store.value):
        return None
    if _masks_checks(readers):
        return _PARTLY_READ
    whole = any(
        load.mask is None and binding is not None and _runs_over_all(binding)
        for load, binding in zip(links, found, strict=True)
    )
    return None if whole else _PARTLY_READ


def has_checks(stores: Sequence[Store]) -> bool:
    """Return whether the stores of a nest contain a run-time index, which may be out of range."""
    return any(_checked(store.index) or _is_checked(store.value) for store in stores)


def _is_checked(value: Value) -> bool:
    """Return whether computing the value checks a run-time index."""
    return any(_checked(_places(node)) for node in value.landmarks)


def _masks_checks(stores: Sequence[Store]) -> bool:
    """Return whether some checked index is computed only under a mask."""
    nodes = landmarks(store.value for store in stores)
    return any(isinstance(n, Load) and n.mask is not None and _checked(n.index) for n in nodes)


def _places(node: Value) -> Sequence[Expr]:
    match node:
        case Load(index=index):
            return index
        case IndexValue(expr=expr):
            return (expr,)
    return ()


def _checked(exprs: Sequence[Expr]) -> bool:
    return bool(run_time_operands(exprs))


def _forgets_index(value: Value, bindings: Mapping[Axis, Expr]) -> bool:
    checked = {axis for axis, expr in bindings.items() if _checked((expr,))}
    return bool(checked) and not checked <= free_axes(value)


def _runs_over_all(bindings: Mapping[Axis, Expr]) -> bool:
    """Return whether the reader's loops cover every point of the store's loops."""
    used: list[Axis] = []
    for axis, expr in bindings.items():
        digits = mixed_radix(expr, axis.extent)
        if digits is None:
            return False
        used.extend(digits)
    return len(set(used)) == len(used)
