"""Traces full backward hooks of modules when the backward runs in the same graph.

Input: a module with such hooks, the arguments of its call and the result. Output: the same tensors
after torch's BackwardHookFunction, with tensor hooks on them (tensor_hooks.py). If the backward
runs outside the graph, the call breaks the graph. So does a call with several arguments or results
that require gradients: only the autograd engine knows when all of their gradients have arrived.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from ....compat.autograd import BackwardHookFunction
from ...breaks import GraphBreak, UnsupportedOperation
from ...builtins.registry import handler_of
from ..base import Args, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import TupleValue
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue
from ..tensors.tensor_hooks import add_hook

__all__ = ["BACKWARD_HOOKS", "BackwardHooks", "backward_hooks"]

BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
# The text of torch's own warning (torch/utils/hooks.py).
_NO_INPUT = (
    "Full backward hook is firing when gradients are computed with respect to module outputs since "
    "no inputs require gradients. See "
    "https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
    "#torch.nn.Module.register_full_backward_hook for more details."
)


def backward_hooks(machine: Machine, module: Value) -> BackwardHooks | None:
    """Return the hooks of the module, or None if it has none or gradients are not recorded."""
    full, before = (_values(machine, module, name) for name in BACKWARD_HOOKS)
    if not full and not before:
        return None
    kind = module.get_attr(machine, "_is_full_backward_hook").realize(machine)
    if full and kind.as_constant(machine) is not True:
        _refuse(module, "backward hooks that are not full")
    return BackwardHooks(module, full, before) if machine.graph.grad_enabled else None


def _values(machine: Machine, module: Value, name: str) -> list[Value]:
    table = module.get_attr(machine, name).realize(machine)
    if not isinstance(table, DictValue):
        module.refuse(machine, name)
    return [hook.realize(machine) for _, hook in list(table.pairs.values())]


_Hook = Callable[[Machine, Value], Value]


class BackwardHooks:
    """The backward hooks of one call of a module."""

    def __init__(self, module: Value, full: list[Value], before: list[Value]) -> None:
        self._module, self._full, self._before = module, full, before
        self._count = 0  # number of arguments
        self._at: int | None = None  # index of the argument that requires a gradient
        self._outgoing: TupleValue | None = None  # gradients of the results until inputs' arrive

    def arguments(self, machine: Machine, args: TupleValue) -> TupleValue:
        items = args.realized(machine)
        self._count, self._at = len(items), self._differentiable_index(items)
        if self._at is None:
            return args
        return TupleValue(self._hooked(machine, items, self._at, self._at_inputs))

    def result(self, machine: Machine, result: Value) -> Value:
        items = result.realized(machine) if isinstance(result, TupleValue) else [result]
        at = self._differentiable_index(items)
        if at is None:
            if not isinstance(result, TupleValue | TensorValue):
                _refuse(self._module, "backward hooks and such a result")
            return result

        def at_results(machine: Machine, gradient: Value) -> Value:
            return self._at_results(machine, gradient, at, len(items))

        hooked = self._hooked(machine, items, at, at_results)
        if not isinstance(result, TupleValue):
            return hooked[0]
        kind = result.python_type(machine)
        if kind is tuple:
            return TupleValue(hooked)
        # torch calls the type with the items as arguments, as a named tuple needs.
        made: Value = machine.class_of(kind, None).call(machine, hooked, {}).realize(machine)
        return made

    def _differentiable_index(self, items: Sequence[Value]) -> int | None:
        """Return the index of the only tensor that requires a gradient, or None."""
        tensors = [n for n, item in enumerate(items) if isinstance(item, TensorValue)]
        found = [n for n in tensors if _requires_grad(items[n])]
        if len(found) > 1:
            _refuse(self._module, "backward hooks and several tensors with gradients")
        return found[0] if found else None

    def _hooked(self, machine: Machine, items: list[Value], at: int, hook: _Hook) -> list[Value]:
        """Apply BackwardHookFunction to the tensors and register `hook` on one of the results."""
        # All tensors, as in torch: each result is a new object, also where it requires no gradient.
        tensors = [item for item in items if isinstance(item, TensorValue)]
        function = machine.class_of(BackwardHookFunction, None)
        applied = function.get_attr(machine, "apply").call(machine, tensors, {}).realize(machine)
        results = iter(applied.realized(machine) if isinstance(applied, TupleValue) else [applied])
        hooked = [next(results) if isinstance(item, TensorValue) else item for item in items]
        add_hook(machine, hooked[at], _GradientHook(hook), False)
        return hooked

    # -- in the backward -------------------------------------------------------------------------

    def _at_results(self, machine: Machine, gradient: Value, at: int, count: int) -> Value:
        nothing = machine.constant(None)
        seen = TupleValue([gradient if n == at else nothing for n in range(count)])
        for hook in self._before:
            seen = self._call_hook(machine, hook, [self._module, seen], seen)
        self._outgoing = seen
        if self._at is None:
            self._call_without_inputs(machine, seen)
        return seen.items[at]

    def _call_without_inputs(self, machine: Machine, seen: TupleValue) -> None:
        warn = handler_of(warnings.warn)
        assert warn is not None
        warn(machine, [machine.constant(_NO_INPUT)], {})
        # torch's BackwardHook calls the full hooks at the results in this case, with None for the
        # gradient of each argument, and raises if a hook returns a gradient.
        none = TupleValue([machine.constant(None)] * self._count)
        for hook in self._full:
            if self._call_hook(machine, hook, [self._module, none, seen], none) is not none:
                _refuse(self._module, "a backward hook that changes no gradient of an input")
        self._outgoing = None

    def _at_inputs(self, machine: Machine, gradient: Value) -> Value:
        if self._outgoing is None:  # the gradient did not come through the module's results
            return gradient
        nothing = machine.constant(None)
        seen = TupleValue([gradient if n == self._at else nothing for n in range(self._count)])
        for hook in self._full:
            seen = self._call_hook(machine, hook, [self._module, seen, self._outgoing], seen)
        self._outgoing = None
        assert self._at is not None
        return seen.items[self._at]

    def _call_hook(
        self, machine: Machine, hook: Value, args: list[Value], seen: TupleValue
    ) -> TupleValue:
        changed = hook.call(machine, args, {}).realize(machine)
        if is_none(changed):
            return seen
        if not isinstance(changed, TupleValue) or len(changed.items) != len(seen.items):
            _refuse(self._module, "a backward hook with such a result")
        return TupleValue(changed.realized(machine))


class _GradientHook(Value):
    """A tensor hook implemented by a Python function of the tracer, which gets the gradient."""

    __slots__ = ("function",)

    def __init__(self, function: _Hook) -> None:
        super().__init__()
        self.function = function

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return self.function(machine, args[0])


def _requires_grad(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.meta.requires_grad


def _refuse(module: Value, what: str) -> NoReturn:
    types = f"{module.describe()} with {what}"
    raise GraphBreak(UnsupportedOperation.of(what="a call", types=types))
