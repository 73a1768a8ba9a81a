"""Traces full backward hooks of modules.

Input: a module with such hooks, the arguments of its call and the result. Output: the same tensors
after torch's BackwardHookFunction, with tensor hooks on them (tensor_hooks.py), which call the
module's hooks as traced code in a backward of the same graph. Such a backward breaks the graph if
several arguments or results require gradients: only the autograd engine knows when all of their
gradients have arrived. A backward outside of the graph calls the hooks through torch's own
BackwardHook, on the autograd nodes of BackwardHookFunction, which then runs between two graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch.utils.hooks import BackwardHook

from ....compat.autograd import BackwardHookFunction
from ...breaks import GraphBreak, UnsupportedOperation
from ...builtins.registry import handler_of
from ...result import BuildTuple, Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import TupleValue
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue
from ..tensors.tensor_hooks import add_hook, hooked_output

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


class BackwardHooks(Value):
    """The backward hooks of one call of a module."""

    __slots__ = ("_before", "_full", "_inputs", "_module", "_outgoing", "_results")

    def __init__(self, module: Value, full: list[Value], before: list[Value]) -> None:
        super().__init__()
        self._module, self._full, self._before = module, TupleValue(full), TupleValue(before)
        self._inputs, self._results = _Tensors([]), _Tensors([])
        self._outgoing: TupleValue | None = None  # gradients of the results until inputs' arrive

    def arguments(self, machine: Machine, args: TupleValue) -> TupleValue:
        items = args.realized(machine)
        self._inputs = _Tensors(items)
        if self._inputs.at is None:
            return args
        return TupleValue(self._hooked(machine, items, self._inputs, "at_inputs"))

    def recipe(self, builder: Builder) -> Recipe:
        parts = map(builder, (self._module, self._full, self._before))
        sides = (self._inputs.recipe(builder), self._results.recipe(builder))
        return builder.invoke(_LiveHooks, (*parts, *sides))

    def result(self, machine: Machine, result: Value) -> Value:
        items = result.realized(machine) if isinstance(result, TupleValue) else [result]
        self._results = _Tensors(items)
        if self._results.at is None:
            if not isinstance(result, TupleValue | TensorValue):
                _refuse(self._module, "backward hooks and such a result")
            return result
        hooked = self._hooked(machine, items, self._results, "at_results")
        if not isinstance(result, TupleValue):
            return hooked[0]
        kind = result.python_type(machine)
        if kind is tuple:
            return TupleValue(hooked)
        # torch calls the type with the items as arguments, as a named tuple needs.
        made: Value = machine.class_of(kind, None).call(machine, hooked, {}).realize(machine)
        return made

    def _hooked(
        self, machine: Machine, items: list[Value], side: _Tensors, name: str
    ) -> list[Value]:
        """Apply BackwardHookFunction to the tensors, and register the method of this name as a hook
        of the first one that requires a gradient.
        """
        # All tensors, as in torch: each result is a new object, also where it requires no gradient.
        tensors = [item for item in items if isinstance(item, TensorValue)]
        function = machine.class_of(BackwardHookFunction, None)
        applied = function.get_attr(machine, "apply").call(machine, tensors, {}).realize(machine)
        results = iter(applied.realized(machine) if isinstance(applied, TupleValue) else [applied])
        hooked = [next(results) if isinstance(item, TensorValue) else item for item in items]
        assert side.at is not None
        side.hooked = hooked[side.at]
        add_hook(machine, side.hooked, _GradientHook(self, name), registers_itself=True)
        return hooked

    # -- in the backward -------------------------------------------------------------------------

    def at_results(self, machine: Machine, gradient: Value) -> Value:
        seen, at = self._seen(machine, gradient, self._results)
        for hook in self._before.items:
            seen = self._call_hook(machine, hook, [self._module, seen], seen)
        self._outgoing = seen
        if self._inputs.at is None:
            self._call_without_inputs(machine, seen)
        return seen.items[at]

    def _call_without_inputs(self, machine: Machine, seen: TupleValue) -> None:
        warn = handler_of(warnings.warn)
        assert warn is not None
        warn(machine, [machine.constant(_NO_INPUT)], {})
        # torch's BackwardHook calls the full hooks at the results in this case, with None for the
        # gradient of each argument, and raises if a hook returns a gradient.
        none = TupleValue([machine.constant(None)] * self._inputs.count)
        for hook in self._full.items:
            if self._call_hook(machine, hook, [self._module, none, seen], none) is not none:
                _refuse(self._module, "a backward hook that changes no gradient of an input")
        self._outgoing = None

    def at_inputs(self, machine: Machine, gradient: Value) -> Value:
        if self._outgoing is None:  # the gradient did not come through the module's results
            return gradient
        seen, at = self._seen(machine, gradient, self._inputs)
        for hook in self._full.items:
            seen = self._call_hook(machine, hook, [self._module, seen, self._outgoing], seen)
        self._outgoing = None
        return seen.items[at]

    def _seen(self, machine: Machine, gradient: Value, side: _Tensors) -> tuple[TupleValue, int]:
        """Return the gradients that hooks get, and the index of the only one."""
        assert side.at is not None
        if side.is_several:
            _refuse(self._module, "backward hooks and several tensors with gradients")
        nothing = machine.constant(None)
        items = [gradient if n == side.at else nothing for n in range(side.count)]
        return TupleValue(items), side.at

    def _call_hook(
        self, machine: Machine, hook: Value, args: list[Value], seen: TupleValue
    ) -> TupleValue:
        changed = hook.call(machine, args, {}).realize(machine)
        if is_none(changed):
            return seen
        if not isinstance(changed, TupleValue) or len(changed.items) != len(seen.items):
            _refuse(self._module, "a backward hook with such a result")
        return TupleValue(changed.realized(machine))


class _Tensors:
    """The arguments or the results of a call: their number, where the tensors are, and the index of
    the first one that requires a gradient.
    """

    def __init__(self, items: Sequence[Value]) -> None:
        self.count = len(items)
        self.places = tuple(n for n, item in enumerate(items) if isinstance(item, TensorValue))
        found = [n for n in self.places if _requires_grad(items[n])]
        self.at, self.is_several = (found[0] if found else None), len(found) > 1
        self.hooked: Value | None = None  # that tensor, after BackwardHookFunction

    def recipe(self, builder: Builder) -> Recipe:
        if self.hooked is None:
            return builder.constant((self.count, (), None))
        count, places = builder.constant(self.count), builder.constant(self.places)
        return BuildTuple((count, places, hooked_output(builder, self.hooked)))


class _GradientHook(Value):
    """A tensor hook that calls the hooks of a module: its method of this name."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: BackwardHooks, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        made: Value = getattr(self.owner, self.name)(machine, args[0])
        return made

    def recipe(self, builder: Builder) -> Recipe:
        return builder(self.owner)


class _LiveHooks(BackwardHook):
    """Torch's own object for the hooks of one call, on the live results of BackwardHookFunction.

    Of the inputs and of the results it gets their number, the indices of the tensors, and one
    tensor with a history, whose grad_fn is the node of all of them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        full: tuple[object, ...],
        before: tuple[object, ...],
        inputs: _Side,
        results: _Side,
    ) -> None:
        super().__init__(module, full, before)
        self.setup_input_hook(_alike(*inputs))
        self.setup_output_hook(_alike(*results))

    def _apply_on_tensors(
        self, fn: Callable[[object], None], args: tuple[torch.Tensor | None, ...]
    ) -> tuple[object, list[int] | None]:
        places = [n for n, tensor in enumerate(args) if tensor is not None]
        if not places:
            return args, None
        fn(args[places[0]].grad_fn)  # type: ignore[union-attr]
        return args, places


_Side = tuple[int, tuple[int, ...], torch.Tensor | None]


def _alike(
    count: int, places: tuple[int, ...], tensor: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    return tuple(tensor if n in places else None for n in range(count))


def _requires_grad(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.meta.requires_grad


def _refuse(module: Value, what: str) -> NoReturn:
    types = f"{module.describe()} with {what}"
    raise GraphBreak(UnsupportedOperation.of(what="a call", types=types))
