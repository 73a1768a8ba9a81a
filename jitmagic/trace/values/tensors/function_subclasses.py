"""Follows `__torch_function__` of tensor subclasses.

Input: a call on tensors, some of a subclass. Output: with the class's own `__torch_function__`, its
inlined result; with that of torch.Tensor, the recorded call, whose tensors become instances of the
subclass. A graph has plain tensors in place of such instances; an exit gives them their class.

A block of DisableTorchFunctionSubclass, and torch.Tensor's `__torch_function__` for the call inside
it, are a count in the state of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, GetSetDescriptorType
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions, get_ignored_functions

from ....compat.distributed import async_class
from ....compat.modes import (
    TorchFunctionOfSubclassesOff,
    TorchFunctionOn,
    ignore_torch_function,
)
from ....graph.distributed.objects import is_marked_async
from ....graph.nested import tensor_nodes_in
from ....graph.node_meta import value_of
from ....graph.wrappers.wrapping import is_wrapper, is_wrapper_class
from ....guards.source import TypeOf
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.registry import AS_GIVEN, handles
from ...result import Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import SequenceValue, TupleValue
from ..contexts.contexts import ContextValue, Row
from ..objects.callables import BuiltinValue, builtin_value
from ..objects.class_facts import attribute_of_class, belongs_to_torch
from ..tensor_base import TensorBase
from .function_modes import has_function_mode, innermost_mode, is_seen_by_modes

__all__ = [
    "attribute_through", "converted", "has_own_function", "is_followed", "is_function_subclass",
    "kind_of_result", "operator_through", "takes_library_wrapper", "through_torch_function",
    "without_torch_functions",
]  # fmt: skip

_DEFAULT = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]


def runs_in_node(kind: type) -> bool:
    """Return whether the `__torch_function__` of a wrapper that torch defines runs in its calls,
    which are nodes, as its `__torch_dispatch__` does.
    """
    return is_wrapper_class(kind) and belongs_to_torch(kind.__module__) and _has_function(kind)


def takes_library_wrapper(arguments: object) -> bool:
    """Return whether such a wrapper is among the arguments of a node."""
    kinds = {type(value_of(node)) for node in tensor_nodes_in(arguments)}
    return any(kind is not torch.Tensor and runs_in_node(kind) for kind in kinds)


def kind_of_result(meta: torch.Tensor) -> type:
    """Return the class of a call's result in the program."""
    if is_marked_async(meta):
        return async_class()
    return type(meta) if is_wrapper(meta) else torch.Tensor


def has_own_function(kind: type) -> bool:
    """Return whether calls on instances run a `__torch_function__` that the trace follows."""
    return _has_function(kind) and not runs_in_node(kind)


def _has_function(kind: type) -> bool:
    function = kind.__torch_function__  # type: ignore[attr-defined]
    return getattr(function, "__func__", function) not in (_DEFAULT, ignore_torch_function)


def is_followed(kind: type) -> bool:
    """Return whether the class's `__torch_function__` is torch's or a class method in Python."""
    function = kind.__torch_function__  # type: ignore[attr-defined]
    in_python = isinstance(getattr(function, "__func__", None), FunctionType)
    return function is ignore_torch_function or (in_python and function.__self__ is kind)


def is_function_subclass(kind: object) -> bool:
    """Return whether a graph can hold a plain tensor in place of an instance of the class."""
    if not isinstance(kind, type) or not issubclass(kind, torch.Tensor):
        return False
    dispatch = kind.__torch_dispatch__  # type: ignore[attr-defined]
    plain = dispatch is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return plain and (kind is torch.Tensor or is_followed(kind))


class _Blocks:
    """The number of open blocks in which torch functions of subclasses are disabled."""

    def __init__(self) -> None:
        self.open = 0


def _blocks(machine: Machine) -> _Blocks:
    return machine.notes.root.of(_Blocks)


@contextmanager
def without_torch_functions(machine: Machine) -> Iterator[None]:
    """Record calls as in a block of DisableTorchFunctionSubclass."""
    blocks = _blocks(machine)
    blocks.open += 1
    try:
        yield
    finally:
        blocks.open -= 1


class _DisabledRow(Row):
    decorates = False

    def enter(self, machine: Machine, context: ContextValue) -> object:
        _blocks(machine).open += 1
        return None

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        _blocks(machine).open -= 1


_DisabledRow(TorchFunctionOfSubclassesOff)


def _tensors(machine: Machine, args: Args, kwargs: Kwargs) -> Iterator[TensorBase]:
    for value in (*args, *kwargs.values()):
        real = value.realize(machine)
        items = real.items if isinstance(real, SequenceValue) else (real,)
        for item in items:
            if isinstance(one := item.realize(machine), TensorBase):
                yield one


def _overloading(machine: Machine, args: Args, kwargs: Kwargs) -> list[TensorBase]:
    """Return a tensor of each class whose `__torch_function__` torch calls, in its order."""
    found: list[TensorBase] = []
    for tensor in _tensors(machine, args, kwargs):
        kind: Any = tensor.kind
        if kind is torch.Tensor or kind.__torch_function__ is ignore_torch_function:
            continue
        if runs_in_node(kind):
            continue
        if all(kind is not other.kind for other in found):
            later = (n for n, other in enumerate(found) if issubclass(kind, other.kind))
            found.insert(next(later, len(found)), tensor)
    return found


def through_torch_function(
    machine: Machine, called: Value | Callable[..., object], args: Args, kwargs: Kwargs
) -> Value | None:
    """Return the result of the user's `__torch_function__`; None if the call has none. `called`:
    the function, or its value.
    """
    function = getattr(called, "obj", None) if isinstance(called, Value) else called
    seen_by_mode = has_function_mode(machine) and is_seen_by_modes(function)
    seen_by_class = function not in get_ignored_functions() and _has_own(machine, args, kwargs)
    if function is _DEFAULT or not (seen_by_mode or seen_by_class):
        return None
    tensors = _overloading(machine, args, kwargs)
    value = called if isinstance(called, Value) else builtin_value(called)
    types = TupleValue([_class_of(machine, tensor) for tensor in tensors])
    named = [(machine.constant(name), value) for name, value in kwargs.items()]
    given = [value, types, TupleValue(list(args)), DictValue.of(machine, named)]
    if seen_by_mode:
        with innermost_mode(machine) as mode:
            # torch passes no empty dictionary.
            made = _ask(machine, mode, given if kwargs else given[:3])
        if made is not None:
            return made
    for owner in map(partial(_class_of, machine), tensors if seen_by_class else ()):
        if (made := _ask(machine, owner, given)) is not None:
            return made
    raise GraphBreak(RefusedTorchCall.of(name=value.describe(), why=_NOT_IMPLEMENTED))


def _has_own(machine: Machine, args: Args, kwargs: Kwargs) -> bool:
    """Return whether the `__torch_function__` of an argument's class sees the call."""
    tensors = () if _blocks(machine).open else _overloading(machine, args, kwargs)
    return any(has_own_function(tensor.kind) for tensor in tensors)


def _ask(machine: Machine, owner: Value, given: Args) -> Value | None:
    """Return the result of `__torch_function__` of a class or a mode; None if it declines."""
    method = owner.get_attr(machine, "__torch_function__").realize(machine)
    made = method.call(machine, given, {}).realize(machine)
    declines = made.is_constant(machine) and made.as_constant(machine) is NotImplemented
    return None if declines else made


class _Found(Exception):
    """Raised with the function and the arguments that torch passes to `__torch_function__`."""


class _Probe(torch.Tensor):
    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls, function: object, types: object, args: tuple[Any, ...] = (), kwargs: object = None
    ) -> object:
        raise _Found(function, args)


def operator_through(machine: Machine, operator: Any, args: Args) -> Value | None:
    """Do `through_torch_function` for an operator of Python, which calls a method of torch.Tensor:
    `1 - x` calls `Tensor.__rsub__(x, 1)`.
    """
    is_seen = has_function_mode(machine) and any(True for _ in _tensors(machine, args, {}))
    if not is_seen and not _has_own(machine, args, {}):
        return None
    given: list[Any] = []
    of_probe: dict[int, Value] = {}
    for value in args:
        real = value.realize(machine)
        if isinstance(real, TensorBase):
            given.append(torch.empty((), device="meta").as_subclass(_Probe))
            of_probe[id(given[-1])] = real
        else:
            given.append(real.as_constant(machine))
    try:
        with TorchFunctionOn():
            operator(*given)
    except _Found as found:
        function, passed = found.args
    back = [of_probe.get(id(one)) or machine.constant(one) for one in passed]
    return through_torch_function(machine, function, back, {})


_NOT_IMPLEMENTED = "no `__torch_function__` implements it for these classes"


def _class_of(machine: Machine, tensor: TensorBase) -> Value:
    source = None if tensor.source is None else TypeOf(tensor.source)
    owner: Value = machine.class_of(tensor.kind, source)
    return owner


def converted(machine: Machine, name: str, args: Args, kwargs: Kwargs, made: Value) -> Value:
    """Return the result of a recorded call as torch.Tensor's `__torch_function__` does."""
    if _blocks(machine).open:
        return made
    tensors = _overloading(machine, args, kwargs)
    if not tensors:
        return made
    kinds = [tensor.kind for tensor in tensors]
    kind = next((one for one in kinds if all(issubclass(one, k) for k in kinds)), None)
    if kind is None or any(map(has_own_function, kinds)):
        raise GraphBreak(RefusedTorchCall.of(name=name, why=_NOT_IMPLEMENTED))
    _become(made, kind, list(_tensors(machine, args, kwargs)), name)
    return made


def _become(made: Value, kind: type, given: Sequence[TensorBase], name: str) -> None:
    """Make the new tensors of a result instances of the subclass."""
    if isinstance(made, SequenceValue):
        for item in made.items:
            _become(item, kind, given, name)
    if not isinstance(made, TensorBase) or issubclass(made.kind, kind):
        return
    if any(made is one for one in given) or is_wrapper_class(kind):
        why = f"its result would be a {kind.__name__} that shares memory with an argument"
        raise GraphBreak(RefusedTorchCall.of(name=name, why=why))
    made.kind = kind


@handles(_DEFAULT, like=AS_GIVEN)
def _default(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Call the function in a block without torch functions of subclasses, and convert."""
    if kwargs or len(args) not in (4, 5):
        raise GraphBreak(RefusedTorchCall.of(name="__torch_function__", why="of its arguments"))
    owner, function, _, positional, *named = (arg.realize(machine) for arg in args)
    if not isinstance(positional, SequenceValue):
        raise GraphBreak(RefusedTorchCall.of(name="__torch_function__", why="of its arguments"))
    keywords = named[0].as_names(machine) if named and isinstance(named[0], DictValue) else {}
    with without_torch_functions(machine):
        made = function.call(machine, list(positional.items), keywords).realize(machine)
    kind = owner.as_constant(machine)
    if kind is torch.Tensor or getattr(function, "obj", None) in get_default_nowrap_functions():
        return made
    _become(made, kind, list(_tensors(machine, positional.items, keywords)), function.describe())
    return made


def attribute_through(machine: Machine, tensor: TensorBase, name: str) -> Value | None:
    """Return an attribute as the user's `__torch_function__` gives it; None if there is none."""
    if not has_own_function(tensor.kind) and not has_function_mode(machine):
        return None
    raw = attribute_of_class(torch.Tensor, name)
    if not isinstance(raw, property | GetSetDescriptorType):
        return None
    return through_torch_function(machine, Getter(name), [tensor], {})


class Getter(BuiltinValue):
    """The function with which torch reads an attribute: `torch.Tensor.shape.__get__`."""

    __slots__ = ("name",)
    obj: Any

    def __init__(self, name: str) -> None:
        super().__init__(attribute_of_class(torch.Tensor, name).__get__)  # type: ignore[attr-defined]
        self.name = name

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return args[0].get_attr(machine, self.name)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.constant(self.obj)
