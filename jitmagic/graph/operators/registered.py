"""Applies what users register about operators (`jitmagic.extend.register_operator`).

Input: a call of an overload. Output: its results by the registered shape rule, or by its fake
kernel if that makes data-dependent sizes; the arguments that it writes; its cost. Without a
registration all of them are None or empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ...compat.operators import fake_contexts, registry
from ...errors import ExtensionFailed
from ...extend.operator_rows import OPERATORS, row_of
from ...spec import TensorSpec
from ...symbols.size import hint_of
from ...torch_types import AnyFunction, Args, Kwargs, OpOverload
from ..fresh_meta import fresh_meta
from ..nested import map_nodes
from .foreign import is_foreign, without_data

__all__ = [
    "fake_of",
    "infer_registered",
    "infer_with_new_sizes",
    "registered_cost",
    "written_names",
]


def infer_registered(op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Return the results as the registered shape rule gives them, or None without a rule. Raises
    ExtensionFailed.
    """
    row = row_of(OPERATORS.rows, op)
    if row is None or row.shape is None:
        return None
    try:
        with fake_contexts(lambda: _Context(_refuse)):
            made = without_data(row.shape(*args, **kwargs))
        _check_results(op, made)
    except NotImplementedError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ExtensionFailed("shape rule", str(op), row.shape, error) from error
    return made


def _check_results(op: OpOverload, made: object) -> None:
    returns = op._schema.returns
    results = made if isinstance(made, tuple | list) else (made,) if returns else ()
    if len(results) != len(returns) and [str(one.type) for one in returns] != ["List[Tensor]"]:
        raise ValueError(f"it returned {len(results)} results, the operator has {len(returns)}")


def _refuse(least: int, most: int | None) -> Any:
    raise NotImplementedError("its shape depends on tensor data")


class _Context:
    """The object that torch.library.get_ctx() returns in a fake kernel."""

    def __init__(self, fresh: Callable[[int, int | None], Any]) -> None:
        self._fresh = fresh

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """Return a new size that depends on data, within limits."""
        return self._fresh(min, max)

    create_unbacked_symint = new_dynamic_size


def fake_of(op: OpOverload) -> AnyFunction | None:
    """Return the registered shape rule, else the fake kernel of a foreign operator, if any."""
    row = row_of(OPERATORS.rows, op)
    if row is not None and row.shape is not None:
        return row.shape
    kernel = registry.find(op._schema.name).fake_impl.kernel if is_foreign(op) else None
    return None if kernel is None else kernel.func  # type: ignore[no-any-return]


def infer_with_new_sizes(
    op: OpOverload, args: Args, kwargs: Kwargs, fresh: Callable[[int, int | None], Any]
) -> object:
    """Return the results of a foreign operator whose rule or fake kernel makes data-dependent sizes
    by `fresh`; None if it does not.
    """
    rule = fake_of(op)
    if rule is None:
        return None
    made_sizes: list[object] = []

    def noted(least: int, most: int | None) -> Any:
        made_sizes.append(size := fresh(least, most))
        return size

    try:
        with fake_contexts(lambda: _Context(noted)):
            made = rule(*args, **kwargs)
    except Exception:  # the rules after this one find it as well, and report it
        return None
    return without_data(made) if made_sizes else None


def written_names(op: object) -> tuple[str, ...]:
    """Return the arguments that the operator writes to, although its schema does not declare it."""
    row = row_of(OPERATORS.rows, op)
    return () if row is None else row.writes


def registered_cost(node: Node) -> float | None:
    """Return the number of arithmetic operations of an ATen node, if that is registered."""
    row = row_of(OPERATORS.rows, node.target)
    if row is None or row.cost is None:
        return None
    args, kwargs = map_nodes((node.args, node.kwargs), _meta_of)
    try:
        return float(row.cost(*args, **kwargs))
    except Exception as error:  # the user's code may raise anything
        raise ExtensionFailed("cost", str(node.target), row.cost, error) from error


def _meta_of(node: Node) -> object:
    """Return a meta tensor for a node, of this call's sizes."""
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec):
        return spec
    shape, stride = map(hint_of, spec.shape), map(hint_of, spec.stride)
    return fresh_meta(tuple(shape), spec.dtype, tuple(stride))
