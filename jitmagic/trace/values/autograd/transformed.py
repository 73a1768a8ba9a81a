"""Models functions returned by transforms of torch.func, and calls of them.

Input: a transform, the function under it (any callable value), the arguments of a call. Output: one
node (targets/transforms.py), made in three steps. (1) torch's own transform runs on meta tensors to
find the arguments with which it calls the function. (2) The function is traced on plain tensors of
the same specs, as a separate graph. (3) The transform runs over that graph on meta tensors, which
gives the results or eager's error.

The function's Python code is traced once. If torch would run it several times, side effects on
outer objects are a graph break. A function that is registered to be a node is not traced at all.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ....compat.pytree import tree_flatten
from ....graph.autocast_mode import OFF
from ....graph.builder import GraphBuilder
from ....graph.nested import tensor_nodes_in
from ....graph.node_meta import device_of, value_of
from ....graph.propagate import DataDependent, EagerRaises, run_on_meta
from ....graph.symbolic.sym_node import as_dimensions
from ....graph.targets.transforms import PassThrough, Pattern, Pull, PythonCall, Slot, Transformed
from ....graph.wrappers.wrapping import is_wrapper
from ....spec import TensorSpec
from ....torch_types import AnyFunction
from ...breaks import (
    GraphBreak,
    RefusedTorchCall,
    TorchCallFailed,
    TransformRefused,
    UnsupportedArguments,
)
from ...region import TransformBuilder
from ...result import BreakReason, Recipe
from ...structures import lower_structure, raise_structure
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..numbers.number_arguments import keep_numbers_of_transform
from ..objects.callables import name_of
from ..tensors.tensor import TensorValue, lift

__all__ = [
    "DualLevels",
    "ReturnedFunctionValue",
    "TransformedValue",
    "call_as_node",
    "call_transformed",
    "record_call",
    "try_on_meta",
]


class DualLevels(list[Any]):
    """The levels of torch.autograd.forward_ad that are open in one graph; torch allows one."""


class TransformedValue(Value):
    """A function like `torch.func.grad(f)`; `settings` are the transform's other arguments."""

    __slots__ = ("function", "settings", "transform")

    def __init__(
        self, transform: AnyFunction, function: Value, settings: Mapping[str, Value]
    ) -> None:
        super().__init__()
        self.transform, self.function, self.settings = transform, function, dict(settings)

    def python_type(self, machine: Machine) -> type:
        return types.FunctionType

    def truth(self, machine: Machine) -> bool:
        return True

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__doc__"):
            return self.function.realize(machine).get_attr(machine, name)
        # torch.func.grad and vmap apply functools.wraps, which sets `__wrapped__`.
        return self.function if name == "__wrapped__" else super().get_attr(machine, name)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        function = self.function.realize(machine)
        return call_transformed(machine, self.transform, function, self.settings, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        named = {name: builder(value) for name, value in self.settings.items()}
        return builder.invoke(self.transform, (builder(self.function),), **named)

    def parts(self) -> Sequence[Value]:
        return (self.function, *self.settings.values())

    def describe(self) -> str:
        return f"torch.func.{self.transform.__name__} of {self.function.describe()}"


class ReturnedFunctionValue(Value):
    """The function returned by vjp or linearize (`name`), which is a node of the graph."""

    __slots__ = ("created_at_step", "device", "name", "node")

    def __init__(self, machine: Machine, node: Node, device: torch.device, name: str) -> None:
        super().__init__()
        self.node, self.device, self.name = node, device, name
        self.created_at_step = machine.step

    def python_type(self, machine: Machine) -> type:
        return types.FunctionType

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        given: list[TensorValue] = []
        structure = [lower_structure(machine, arg, self.name, _slots(given)) for arg in args]
        settings = {name: value.as_constant(machine) for name, value in kwargs.items()}
        target = Pull(settings, Pattern(*_flat(structure)))
        return record_call(machine, target, (self.node, _nodes(given)), self.device, self.name)

    def recipe(self, builder: Builder) -> Recipe:
        why = "the function that it returns is used outside of the graph"
        reason: BreakReason = RefusedTorchCall.of(name=self.name, why=why)
        raise CannotRebuild(f"a function returned by {self.name}", self.created_at_step, reason)

    def describe(self) -> str:
        return f"the function returned by {self.name}"


def call_transformed(
    machine: Machine,
    transform: AnyFunction,
    function: Value,
    settings: Mapping[str, Value],
    args: Args,
    kwargs: Kwargs,
    *,
    takes_function: bool = True,
    repeats: bool = False,
) -> Value:
    """Trace a call of the transform of a function; for `takes_function` see `Transformed`.
    `repeats`: where eager runs the function once, the graph runs it again.
    """
    call = _Call(machine, transform, settings, takes_function, repeats)
    return call.run(function, args, kwargs)


def call_as_node(machine: Machine, function: AnyFunction, args: Args, kwargs: Kwargs) -> Value:
    """Record a call of a function as one node; the function runs on meta tensors."""
    given: list[TensorValue] = []
    name, slots = name_of(function), _slots(given)
    positional = tuple(lower_structure(machine, arg, name, slots) for arg in args)
    named = {key: lower_structure(machine, value, name, slots) for key, value in kwargs.items()}
    arguments = Pattern(*_flat((positional, named)))
    for leaf in arguments.leaves:
        if isinstance(leaf, PassThrough):
            what = f"a {leaf.value.describe()}"
            raise GraphBreak(UnsupportedArguments.of(name=name, what=what))
    versions = [value.meta._version for value in given]
    target, device = PythonCall(function, arguments), _device_of(given, name)
    # It may draw random numbers: nothing but its calls on real tensors shows that.
    made = record_call(machine, target, (_nodes(given),), device, name, draws=True)
    if versions != [value.meta._version for value in given]:
        why = "it writes to its arguments"
        raise GraphBreak(RefusedTorchCall.of(name=name, why=why))
    return made


class _ProbedCall(BaseException):
    """Raised through torch's transform, to report the arguments with which it calls the function.

    It is a BaseException, so that no `except Exception` in torch catches it."""

    def __init__(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        super().__init__()
        self.args_and_kwargs = tuple(args), dict(kwargs)
        self.grad_enabled = torch.is_grad_enabled()


class _Call:
    """One call of a transformed function."""

    def __init__(
        self,
        machine: Machine,
        transform: AnyFunction,
        settings: Mapping[str, Value],
        takes_function: bool,
        repeats: bool,
    ) -> None:
        self.machine, self.transform, self.repeats = machine, transform, repeats
        self.name = f"torch.func.{transform.__name__}"
        self.settings = {n: self._constant(v.realize(machine)) for n, v in settings.items()}
        self.takes_function = takes_function
        self.given: list[TensorValue] = []

    def _constant(self, value: Value) -> object:
        if not value.is_constant(self.machine):
            raise GraphBreak(
                RefusedTorchCall.of(name=self.name, why=f"{value.describe()} is given")
            )
        return value.as_constant(self.machine)

    def run(self, function: Value, args: Args, kwargs: Kwargs) -> Value:
        machine, notes = self.machine, self.machine.notes
        outer = notes.graph
        if notes.of(DualLevels):  # eager raises for forward mode in forward mode
            self._refuse("a level of torch.autograd.forward_ad is open")
        if outer.has_cast or outer.autocast != OFF:
            self._refuse("the graph has operations under autocast")
        slots = _slots(self.given)
        positional = tuple(lower_structure(machine, arg, self.name, slots) for arg in args)
        named = {k: lower_structure(machine, v, self.name, slots) for k, v in kwargs.items()}
        arguments = Pattern(*_flat((positional, named)))
        device = _device_of(self.given, self.name)
        probed = self._probe(arguments)
        # grad transforms enable grad for the function even under no_grad.
        region = TransformBuilder(notes, self.name, probed.grad_enabled)
        observed = _ObservedEffects(machine.effects)
        # Whatever the function does, it is recorded in the region. `finally` restores the outer
        # graph, since a break in the function ends that graph before this call.
        machine.notes, machine.effects = region.notes, observed  # type: ignore[misc]
        try:
            values = self._values(region, probed, device)
            answer = function.call(machine, *values).realize(machine)
            returned: list[TensorValue] = []
            structure = lower_structure(machine, answer, self.name, _slots(returned))
            draws = region.draws
            if draws and self.repeats:
                self._refuse("it draws random numbers")
            graph, feeds, captured, outputs = region.close(_nodes(returned))
        finally:
            machine.notes, machine.effects = notes, observed.log  # type: ignore[misc]
        leaves, spec = _flat(structure)
        placed = tuple(Slot(outputs[x.index]) if isinstance(x, Slot) else x for x in leaves)
        # Only torch knows the rules of its transforms (batching, jvp formulas). It runs the
        # transform over this graph: now on meta tensors, in the joint trace, and on real tensors.
        target = Transformed(
            self.transform, self.settings, self.takes_function, graph, feeds, arguments,
            Pattern(placed, spec),
        )  # fmt: skip
        made = record_call(
            machine, target, (_nodes(self.given), captured), device, self.name, draws
        )
        # torch may run the function several times, but its Python code was traced once.
        if (target.runs > 1 or self.repeats) and observed.touched:
            # A counter that the function increments would be incremented once, in eager at each
            # run.
            self._refuse("it runs several times and has side effects")
        if region.numbers and outer.root is outer:
            given = _nodes(self.given)
            keep_numbers_of_transform(machine, target, given, captured, region.numbers)
        return made

    def _probe(self, arguments: Pattern) -> _ProbedCall:
        """Return the arguments with which torch calls the function: meta tensors of its level."""

        def probe(*args: object, **kwargs: object) -> object:
            raise _ProbedCall(args, kwargs)

        def run(*tensors: torch.Tensor) -> object:
            args, kwargs = arguments.fill(tensors)
            if self.takes_function:
                # torch itself decides what the function gets: `argnums` and `in_dims` split the
                # arguments, and levels wrap some of them.
                return self.transform(probe, **self.settings)(*args, **kwargs)
            return self.transform(probe, *args, **self.settings, **kwargs)

        metas = tuple(value.meta for value in self.given)
        try:
            try_on_meta(self.name, run, metas, self.machine.graph)
        except _ProbedCall as probed:
            return probed
        self._refuse("it is not called")

    def _values(
        self, region: TransformBuilder, probed: _ProbedCall, device: torch.device
    ) -> tuple[list[Value], dict[str, Value]]:
        """Return the function's arguments: inputs of the region for the level's tensors, and the
        call's own tensors where the transform passes them unchanged."""
        machine = self.machine
        outside = {id(value.meta): value for value in self.given}
        count = iter(range(len(self.given) + 1))

        def leaf(tensor: object) -> Value | None:
            if not isinstance(tensor, torch.Tensor):
                return None
            index, same = next(count), outside.get(id(tensor))
            if same is not None:
                return same
            node = region.feed("given", index, _spec(tensor, device))
            region.unknown_strides.add(node)
            return lift(machine, node)

        args, kwargs = probed.args_and_kwargs
        positional = [raise_structure(machine, arg, leaf) for arg in args]
        return positional, {k: raise_structure(machine, v, leaf) for k, v in kwargs.items()}

    def _refuse(self, why: str) -> NoReturn:
        raise GraphBreak(TransformRefused.of(name=self.name, why=why))


class _ObservedEffects:
    """Forwards to the log of effects and notes any access, which may have recorded an effect."""

    def __init__(self, log: Any) -> None:
        self.log, self.touched = log, False

    def __getattr__(self, name: str) -> Any:
        self.touched = self.touched or name not in ("count", "mutated")
        return getattr(self.log, name)


def _device_of(given: Sequence[TensorValue], name: str) -> torch.device:
    devices = {device_of(value.node) for value in given}
    if len(devices) > 1:
        raise GraphBreak(TransformRefused.of(name=name, why="its tensors are on several devices"))
    return next(iter(devices), torch.device("cpu"))


def _spec(tensor: torch.Tensor, device: torch.device) -> TensorSpec:
    """Return the spec of a tensor as a level shows it; its base and offset are not visible."""
    shape, stride = as_dimensions(tensor.shape), as_dimensions(tensor.stride())
    known = TensorSpec(shape, stride, tensor.dtype, device, tensor.requires_grad, True)
    return known if tensor.is_leaf else replace(known, is_leaf=False)


def _flat(structure: object) -> tuple[tuple[object, ...], object]:
    leaves, spec = tree_flatten(structure)
    return tuple(leaves), spec


def _slots(tensors: list[TensorValue]) -> Callable[[TensorValue], Slot]:
    """Return a function that collects tensors of structures and gives each its index."""

    def slot(value: TensorValue) -> Slot:
        tensors.append(value)
        return Slot(len(tensors) - 1)

    return slot


def _nodes(values: Sequence[TensorValue]) -> tuple[Node, ...]:
    return tuple(value.node for value in values)


def try_on_meta(
    name: str, run: Callable[..., object], args: tuple[object, ...], graph: GraphBuilder
) -> object:
    """Run a function on meta tensors; break where eager raises or data decides."""
    try:
        return run_on_meta(run, args, {}, graph.grad_enabled)
    except (EagerRaises, DataDependent) as error:
        raise _failed(name, error) from None


def _failed(name: str, error: Exception) -> GraphBreak:
    kind = type(getattr(error, "error", error)).__name__
    return GraphBreak(TorchCallFailed.of(name=name, error=f"{kind}: {error}"))


def record_call(
    machine: Machine,
    target: Transformed | Pull | PythonCall,
    args: tuple[object, ...],
    device: torch.device,
    name: str,
    draws: bool = False,
) -> Value:
    """Record one node and return the value of its result."""
    graph = machine.graph
    if any(is_wrapper(value_of(node)) for node in tensor_nodes_in(args)):
        raise GraphBreak(TransformRefused.of(name=name, why="an argument is a tensor subclass"))
    try:
        made = graph.call_transform(target, args, device, machine.lines())
    except (EagerRaises, DataDependent) as error:
        raise _failed(name, error) from None
    # By this mark, speculation replays draws in order, and no functools cache is read before one.
    if draws:
        next(n for n in reversed(graph.graph.nodes) if n.target is target).meta["random"] = True

    def leaf(index: object) -> Value | None:
        if not isinstance(index, Slot):
            return None
        node = made[index.index]
        if isinstance(node.meta["val"], torch.Tensor):
            return lift(machine, node)
        return ReturnedFunctionValue(machine, node, device, name)

    assert target.made is not None
    return raise_structure(machine, target.made.fill(list(map(Slot, range(len(made))))), leaf)
