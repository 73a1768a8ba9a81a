"""Forward hooks of modules: run around `forward` as torch.nn.Module._call_impl does.

Comes in: a module whose tables of forward hooks hold something; reading them guards which hooks
there are. Goes out: what the call gives after them.
"""

from __future__ import annotations

from .base import Args, Kwargs, Machine, Value
from .mappings import DictValue
from .operators import is_none
from .sequences import TupleValue

__all__ = ["FORWARD_HOOKS", "call_with_hooks"]

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def call_with_hooks(
    machine: Machine, module: Value, forward: Value, args: Args, kwargs: Kwargs
) -> Value:
    """`module(*args, **kwargs)`."""
    given, named = TupleValue(args), dict(kwargs)
    for hook, with_kwargs in _hooks(machine, module, "_forward_pre_hooks"):
        given, named = _before(machine, module, hook, with_kwargs, given, named)
    result = forward.call(machine, given.items, named)
    for hook, with_kwargs in _hooks(machine, module, "_forward_hooks"):
        more = [_keywords(machine, named)] if with_kwargs else []
        changed = hook.call(machine, [module, given, *more, result], {}).realize(machine)
        result = result if is_none(changed) else changed
    return result


def _hooks(machine: Machine, module: Value, table: str) -> list[tuple[Value, bool]]:
    """The hooks in order, and whether each is given the keyword arguments."""
    hooks = _table(machine, module, table)
    with_kwargs = _table(machine, module, f"{table}_with_kwargs")
    return [
        (hook.realize(machine), with_kwargs.find(machine, key) is not None)
        for key, hook in list(hooks.pairs.values())
    ]


def _table(machine: Machine, module: Value, name: str) -> DictValue:
    found = module.get_attr(machine, name).realize(machine)
    if not isinstance(found, DictValue):
        module.refuse(machine, name)
    return found


def _keywords(machine: Machine, named: Kwargs) -> DictValue:
    return DictValue.of(machine, ((machine.constant(key), one) for key, one in named.items()))


def _before(
    machine: Machine,
    module: Value,
    hook: Value,
    with_kwargs: bool,
    given: TupleValue,
    named: dict[str, Value],
) -> tuple[TupleValue, dict[str, Value]]:
    """The arguments as a pre-hook leaves them."""
    if not with_kwargs:
        changed = hook.call(machine, [module, given], {}).realize(machine)
        if is_none(changed):
            return given, named
        return (changed if isinstance(changed, TupleValue) else TupleValue([changed])), named
    keywords = _keywords(machine, named)
    changed = hook.call(machine, [module, given, keywords], {}).realize(machine)
    if is_none(changed):
        return given, keywords.as_names(machine)
    parts = changed.realized(machine) if isinstance(changed, TupleValue) else []
    if len(parts) != 2 or not isinstance(parts[0], TupleValue):
        module.refuse(machine, "such a result of a pre-hook")
    if not isinstance(parts[1], DictValue):
        module.refuse(machine, "such a result of a pre-hook")
    return parts[0], parts[1].as_names(machine)
