"""Runs the hooks of modules around `forward`, as torch.nn.Module._call_impl does.

Input: a module with its own hooks, or global forward hooks; reading the tables guards their hooks.
Output: the result of the call after the hooks; backward_hooks.py has the backward hooks. An
`always_call` hook differs only if the forward raises, which is a graph break.
"""

from __future__ import annotations

import torch

from ....guards.guard import EntriesEmpty
from ....guards.source import ImportedModule, InstanceDict, Item, Source
from ...breaks import GraphBreak, UnsupportedOperation
from ..base import Args, Kwargs, Machine, ObservedError, Value
from ..containers.mappings import DictValue
from ..containers.sequences import TupleValue
from ..objects.operators import is_none
from .backward_hooks import BACKWARD_HOOKS, backward_hooks

__all__ = [
    "ALWAYS_CALLED", "FORWARD_HOOKS", "call_with_hooks", "has_global_hooks",
]  # fmt: skip

FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
ALWAYS_CALLED = "_forward_hooks_always_called"
_MODULES = torch.nn.modules.module
_GLOBALS: Source = InstanceDict(ImportedModule(_MODULES.__name__))


def has_global_hooks(machine: Machine) -> bool:
    """Return whether there are global forward hooks, guarded; break if there are backward ones."""
    hooked = any(vars(_MODULES)[f"_global{name}"] for name in FORWARD_HOOKS)
    marks = machine.notes.marks
    # One guard for the graph covers all of its calls of modules.
    if "module hooks" not in marks:
        marks.add("module hooks")
        absent = BACKWARD_HOOKS if hooked else (*BACKWARD_HOOKS, *FORWARD_HOOKS)
        names = tuple(f"_global{name}" for name in absent)
        if any(vars(_MODULES)[name] for name in names):
            what = "modules with global backward hooks"
            raise GraphBreak(UnsupportedOperation.of(what="a call", types=what))
        machine.guard(EntriesEmpty(_GLOBALS, names))
    return hooked


def call_with_hooks(
    machine: Machine, module: Value, forward: Value, args: Args, kwargs: Kwargs
) -> Value:
    """Return `module(*args, **kwargs)`."""
    positional, named = TupleValue(args), dict(kwargs)
    for hook, with_kwargs in _hooks(machine, module, "_forward_pre_hooks"):
        positional, named = _call_pre_hook(machine, module, hook, with_kwargs, positional, named)
    # torch's order: the backward hooks see the arguments after the pre-hooks, and the result after
    # the forward hooks.
    backward = backward_hooks(machine, module)
    if backward is not None:
        positional = backward.arguments(machine, positional)
    try:
        result = forward.call(machine, positional.items, named)
    except ObservedError:
        # After an error, torch calls such hooks, turns their own errors into warnings and raises
        # again.
        if _any_always_called(machine, module):
            what = "an error of a module with always_call hooks"
            raise GraphBreak(UnsupportedOperation.of(what=what, types=module.describe())) from None
        raise
    for hook, with_kwargs in _hooks(machine, module, "_forward_hooks"):
        more = [_keywords(machine, named)] if with_kwargs else []
        changed = hook.call(machine, [module, positional, *more, result], {}).realize(machine)
        result = result if is_none(changed) else changed
    return result if backward is None else backward.result(machine, result)


def _any_always_called(machine: Machine, module: Value) -> bool:
    tables = [module.get_attr(machine, ALWAYS_CALLED).realize(machine)]
    if has_global_hooks(machine):
        tables.append(_global_table(machine, ALWAYS_CALLED))
    return any(table.length(machine) for table in tables)


def _hooks(machine: Machine, module: Value, table: str) -> list[tuple[Value, bool]]:
    """Return (hook, takes keyword arguments) in calling order, global hooks first."""
    hooks: list[tuple[Value, bool]] = []
    if has_global_hooks(machine):
        hooks += _of(machine, _global_table(machine, table), _global_with_kwargs(machine, table))
    own = _table(machine, module, table)
    return hooks + _of(machine, own, _table(machine, module, f"{table}_with_kwargs"))


def _of(machine: Machine, hooks: DictValue, with_kwargs: DictValue) -> list[tuple[Value, bool]]:
    return [
        (hook.realize(machine), with_kwargs.find(machine, key) is not None)
        # _call_impl unpacks both tables into one tuple before the first call, so a hook that
        # removes itself does not disturb the walk.
        for key, hook in list(hooks.pairs.values())
    ]


def _global_with_kwargs(machine: Machine, table: str) -> DictValue:
    """Return the table of hooks that take keyword arguments; global pre-hooks never do."""
    name = f"{table}_with_kwargs"
    known = hasattr(_MODULES, f"_global{name}")
    return _global_table(machine, name) if known else DictValue.of(machine, ())


def _global_table(machine: Machine, name: str) -> DictValue:
    name = f"_global{name}"
    found = machine.wrap(vars(_MODULES)[name], Item(_GLOBALS, name))
    assert isinstance(found, DictValue)
    return found


def _table(machine: Machine, module: Value, name: str) -> DictValue:
    found = module.get_attr(machine, name).realize(machine)
    if not isinstance(found, DictValue):
        module.refuse(machine, name)
    return found


def _keywords(machine: Machine, named: Kwargs) -> DictValue:
    return DictValue.of(machine, ((machine.constant(key), value) for key, value in named.items()))


def _call_pre_hook(
    machine: Machine,
    module: Value,
    hook: Value,
    with_kwargs: bool,
    positional: TupleValue,
    named: dict[str, Value],
) -> tuple[TupleValue, dict[str, Value]]:
    """Call a pre-hook and return the positional and keyword arguments that `forward` gets."""
    if not with_kwargs:
        changed = hook.call(machine, [module, positional], {}).realize(machine)
        if is_none(changed):
            return positional, named
        return (changed if isinstance(changed, TupleValue) else TupleValue([changed])), named
    keywords = _keywords(machine, named)
    changed = hook.call(machine, [module, positional, keywords], {}).realize(machine)
    if is_none(changed):
        # The hook gets the dictionary of `kwargs` itself, so `forward` sees what it has stored
        # there.
        return positional, keywords.as_names(machine)
    parts = changed.realized(machine) if isinstance(changed, TupleValue) else []
    if len(parts) != 2 or not isinstance(parts[0], TupleValue):
        module.refuse(machine, "such a result of a pre-hook")
    if not isinstance(parts[1], DictValue):
        module.refuse(machine, "such a result of a pre-hook")
    return parts[0], parts[1].as_names(machine)
