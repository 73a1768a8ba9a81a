"""Traits of calls that the meta run does not show: random draws, hidden writes.

Input: a call's target and arguments. Output: whether it draws random numbers (it then stays in the
graph and draws on every call); which arguments only the real kernel writes (the running statistics
of the normalisations); and whether it is a factory, which reads no numbers.
"""

from __future__ import annotations

from functools import cache

from torch.fx import Node

from ...compat.operators import OpOverload, OpOverloadPacket
from ...extend.operator_rows import OPERATORS, row_of
from ...operators.operation import Operation, operation, overloads_named
from ..nested import nodes_in
from ..target_names import Target, target_name
from .foreign import is_random_op, overloads_of

__all__ = ["draws", "hidden_writes", "makes_new", "operation_of"]


def operation_of(target: Target) -> Operation:
    """Return the row of a call's target: that of an overload which a user has registered, or the
    one of its name.
    """
    found = _registered(target)
    return operation(target_name(target)) if found is None else found[1]


def _registered(target: Target) -> tuple[OpOverload, Operation] | None:
    """Return the overload of a target about which a user has registered facts, with its row."""
    if not OPERATORS.rows or not isinstance(target, OpOverload | OpOverloadPacket):
        return None
    pairs = ((op, row_of(OPERATORS.rows, op)) for op in overloads_of(target))
    return next(((op, row) for op, row in pairs if row is not None), None)


def draws(target: Target, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether the call may draw random numbers."""
    known = operation_of(target).draws
    if known is not None:
        return known.in_call(args, kwargs)
    is_operator = isinstance(target, OpOverload | OpOverloadPacket)
    return is_random_op(target) if is_operator else _draws_by_tag(target_name(target))


@cache
def _draws_by_tag(name: str) -> bool:
    return any(map(is_random_op, overloads_named(name)))


def makes_new(target: Target) -> bool:
    """Return whether it is a factory (zeros, new_full, ones_like), which reads and draws no
    numbers.
    """
    return _makes_new(target_name(target))


@cache
def _makes_new(name: str) -> bool:
    """Decide by the schemas: a factory takes `pin_memory`, and reads at most `self`, the tensor
    that its result is like; private operators (_to_copy) may read more of it.
    """
    overloads = [] if name.startswith("_") else overloads_named(name)
    functional = [op for op in overloads if not any(a.is_out for a in op._schema.arguments)]
    return bool(functional) and all(map(_is_factory, functional))


def _is_factory(op: OpOverload) -> bool:
    arguments = op._schema.arguments
    takes_options = any(a.name == "pin_memory" and a.kwarg_only for a in arguments)
    read = [a.name for a in arguments if "Tensor" in str(a.type)]
    return takes_options and read in ([], ["self"]) and not is_random_op(op)


# Where running_mean and running_var are, by (keyword, position).
_FUNCTIONAL = (("running_mean", 1), ("running_var", 2))
_NATIVE = (("running_mean", 3), ("running_var", 4))


def hidden_writes(
    target: Target, args: tuple[object, ...], kwargs: dict[str, object], written: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Return the nodes that a call writes to although its schema does not declare it, without those
    in `written`.
    """
    found = _statistics(target, args, kwargs)
    if (registered := _registered(target)) is not None:
        op, row = registered
        places = {argument.name: n for n, argument in enumerate(op._schema.arguments)}
        found += nodes_in(
            [args[places[n]] if places[n] < len(args) else kwargs.get(n) for n in row.writes]
        )
    return tuple(node for node in found if node not in written)


def _statistics(target: Target, args: tuple[object, ...], kwargs: dict[str, object]) -> list[Node]:
    """Return the running statistics that a normalisation updates."""
    flag = operation(target_name(target).removeprefix("native_")).statistics
    if flag is None or not flag.in_call(args, kwargs):
        return []
    python = getattr(target, "__module__", "") == "torch.nn.functional"
    found = [
        kwargs.get(keyword, args[at] if at < len(args) else None)
        for keyword, at in (_FUNCTIONAL if python else _NATIVE)
    ]
    return [node for node in found if isinstance(node, Node)]
