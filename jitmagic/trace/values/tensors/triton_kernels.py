"""Models user-written Triton kernels: `kernel[grid](x, out, n, BLOCK=128)` is one node.

Input: an object of triton.jit, triton.autotune or triton.heuristics, guarded by identity, together
with the functions that its code calls. Output: a call of an operator of jitmagic that stands for
the launch (graph/triton/launches.py). Tensors and numbers are its arguments, so that sizes
may vary; constexprs and options belong to the operator. A grid that is computed from metaparameters
is traced once for each configuration of the kernel: tuning chooses one when the graph runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any

from ....graph.triton.launches import (
    Const,
    Grid,
    Items,
    Launch,
    Number,
    Origin,
    Parameter,
    Tensor,
    layers,
    operator_of,
)
from ....graph.triton.writes import WriteAnalysis, function_of
from ....guards.guard import IdentityIs, NameFact, NamespaceFacts, StateRead
from ....guards.source import InstanceDict, Item, Source
from ...breaks import GraphBreak, RefusedTorchCall
from ...result import Recipe
from ...wrap import by_identity, wraps_named
from ..base import Args, Builder, CannotRebuild, Kwargs, Lazy, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import ListValue, SequenceValue
from ..numbers.number import NumberValue
from ..objects.callables import BuiltinValue
from ..objects.classes import ClassValue, constructs
from ..objects.constants import ATOMS, ConstantValue
from .tensor import TensorValue, record

__all__ = ["KernelValue"]


class KernelValue(BuiltinValue):
    """A Triton kernel, or one decorated by triton.autotune or triton.heuristics."""

    __slots__ = ()
    obj: Any

    def get_item(self, machine: Machine, key: Value) -> Value:
        return _Launcher(self, key)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        self.refuse(machine, "a call")  # Triton raises RuntimeError

    def describe(self) -> str:
        return f"Triton kernel {_name(self.obj)}"


wraps_named("triton.runtime.jit", "KernelInterface")(by_identity(KernelValue))
# Before Triton 3.5 this class has no base.
wraps_named("triton.runtime.interpreter", "InterpretedFunction")(by_identity(KernelValue))


def _is_interpreted(kernel: object) -> bool:
    """Return whether Triton's interpreter runs the kernel: a launch then returns None."""
    return any(type(layer).__module__ == "triton.runtime.interpreter" for layer in layers(kernel))


def _name(kernel: object) -> str:
    return str(getattr(function_of(kernel), "__name__", kernel))


def _refused(kernel: object, why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=f"{_name(kernel)}[grid]", why=why))


class DescriptorValue(Value):
    """A tensor descriptor that the program makes. Its class checks the tensor's address, so each
    launch makes it anew, and raises what its class raises.
    """

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type, fields: dict[str, Value]) -> None:
        super().__init__()
        self.kind, self.fields = kind, fields

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name not in self.fields:
            self.refuse(machine, f"attribute {name!r}")
        return self.fields[name]

    def parts(self) -> Iterator[Value]:
        yield from self.fields.values()

    def recipe(self, builder: Builder) -> Recipe:
        return builder.call(builder.constant(self.kind), *map(builder, self.fields.values()))


@constructs(
    lambda kind: (
        (kind.__module__, kind.__name__) == ("triton.tools.tensor_descriptor", "TensorDescriptor")
    ),
    before_others=True,
)
def _make_descriptor(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    try:
        bound = inspect.signature(cls.live).bind(*args, **kwargs)
    except TypeError as error:
        raise GraphBreak(RefusedTorchCall.of(name=cls.live.__name__, why=error)) from None
    bound.apply_defaults()
    fields = {
        name: value if isinstance(value, Value) else machine.constant(value)
        for name, value in bound.arguments.items()
    }
    if not isinstance(fields["base"].realize(machine), TensorValue):
        raise GraphBreak(RefusedTorchCall.of(name=cls.live.__name__, why="its base is no tensor"))
    return DescriptorValue(cls.live, fields)


class _Launcher(Value):
    """`kernel[grid]`."""

    __slots__ = ("grid", "kernel")

    def __init__(self, kernel: KernelValue, grid: Value) -> None:
        super().__init__()
        self.kernel, self.grid = kernel, grid

    def parts(self) -> Iterator[Value]:
        yield self.kernel
        yield self.grid

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if machine.graph.is_transformed:  # eager raises: such tensors have no address
            raise _refused(self.kernel.obj, "it runs under a transform of torch.func")
        _guard_code(machine, self.kernel)
        call = _Call(machine, self.kernel, args, kwargs)
        grids, sizes = call.grids(self.grid.realize(machine))
        launch = Launch(
            self.kernel.obj,
            tuple(call.parameters),
            tuple(call.tensors.values()),
            call.written(),
            tuple(call.numbers),
            grids,
        )
        given = [*call.given_tensors, *call.given_numbers, ListValue(sizes), ListValue([])]
        record(machine, operator_of(launch), given)
        if _is_interpreted(self.kernel.obj):
            return machine.constant(None)
        return _Launched(machine, self.kernel.obj)

    def recipe(self, builder: Builder) -> Recipe:
        get = builder.constant(_launcher)
        return builder.call(get, builder(self.kernel), builder(self.grid))


def _launcher(kernel: Any, grid: object) -> object:
    return kernel[grid]


class _Launched(Value):
    """The result of a launch: Triton's compiled kernel, which exists once the graph has run."""

    __slots__ = ("created_at_step", "name")

    def __init__(self, machine: Machine, kernel: object) -> None:
        super().__init__()
        self.created_at_step, self.name = machine.step, _name(kernel)

    def recipe(self, builder: Builder) -> Recipe:
        why = "its result, Triton's compiled kernel, is used"
        reason = RefusedTorchCall.of(name=f"{self.name}[grid]", why=why)
        raise CannotRebuild("a compiled kernel", self.created_at_step, reason)


def _guard_code(machine: Machine, kernel: KernelValue) -> None:
    """Guard the chain of decorators, and in each the parts that can be changed in place."""
    source: Source | None = kernel.source
    for layer in layers(kernel.obj):
        if layer is not kernel.obj and source is not None:
            source = Item(InstanceDict(source), "fn")
            machine.guard(IdentityIs(source, layer))
        read = _Parts(layer)
        machine.guard(StateRead(read, read()))


class _Parts:
    """Reads the source text of a kernel, or the configurations between which tuning chooses."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.__name__ = layer, f"the code of {_name(layer)}"

    def __call__(self) -> tuple[object, ...]:
        configs = getattr(self.layer, "configs", None) or ()
        return (getattr(self.layer, "src", None), *configs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and other.layer is self.layer

    def __hash__(self) -> int:
        return id(self.layer)


_Configuration = tuple[tuple[tuple[str, object], ...], dict[str, Value]]
"""The metaparameters that tuning chooses, and all that a grid function receives."""


class _Call:
    """The arguments of one launch, in the order in which they are passed."""

    def __init__(self, machine: Machine, kernel: KernelValue, args: Args, kwargs: Kwargs) -> None:
        self.machine, self.kernel = machine, kernel
        function = function_of(kernel.obj)
        if function is None:
            raise _refused(kernel.obj, "its Python function is unknown")
        self.signature = inspect.signature(function).parameters
        self.parameters: list[Parameter] = []
        self.arguments: dict[str, Value] = {}  # what a grid function receives
        self.tensors: dict[Any, str] = {}  # node -> its first parameter
        self.given_tensors: list[Value] = []
        self.numbers: list[str] = []
        self.given_numbers: list[Value] = []
        self.constants: dict[str, object] = {
            name: one.default
            for name, one in self.signature.items()
            if one.default is not one.empty
        }
        self.slots: dict[str, set[int]] = {}  # parameter -> the tensors that it points into
        names = list(self.signature)
        if len(args) > len(names) or not set(names[: len(args)]).isdisjoint(kwargs):
            raise _refused(kernel.obj, "its arguments do not fit its parameters")
        for name, arg in zip(names, args, strict=False):
            self.add(None, name, arg)
        for name, arg in kwargs.items():
            self.add(name, name, arg)

    def add(self, keyword: str | None, name: str, arg: Value) -> None:
        origin = self.origin(name, arg)
        self.parameters.append(Parameter(keyword, origin))
        if name in self.signature:
            self.arguments[name] = arg

    def origin(self, name: str, arg: Value) -> Origin:
        is_option = name not in self.signature
        if is_option or "constexpr" in str(self.signature[name].annotation):
            constant = self.constant(name, arg)
            self.constants[name] = constant.value
            return constant
        found = self.value(name, arg)
        if isinstance(found, Const):
            self.constants[name] = found.value
        return found

    def value(self, name: str, arg: Value) -> Origin:
        """Return where a tensor, a number, a constant or an object made of these comes from."""
        arg = arg.realize(self.machine).operand(self.machine)
        if isinstance(arg, SequenceValue):
            parts = tuple(self.value(name, one) for one in arg.items)
            return Items(parts, list if isinstance(arg, ListValue) else tuple)
        if isinstance(arg, DescriptorValue):
            fields = tuple(self.value(name, one) for one in arg.fields.values())
            return Items(fields, arg.kind)
        if isinstance(arg, TensorValue):
            if arg.node not in self.tensors:
                self.tensors[arg.node] = self.unused(name)
                self.given_tensors.append(arg)
            slot = [*self.tensors].index(arg.node)
            self.slots.setdefault(name, set()).add(slot)
            return Tensor(slot)
        kind = arg.python_type(self.machine)
        if kind in (int, float):
            self.numbers.append(self.unused(name))
            self.given_numbers.append(arg)
            return Number(len(self.numbers) - 1, "SymInt" if kind is int else "float")
        return self.constant(name, arg)

    def unused(self, name: str) -> str:
        """Return a name of an argument of the operator: several may come from one tuple."""
        taken = {*self.tensors.values(), *self.numbers}
        numbered = (f"{name}_{n}" for n in count(1))
        return next(one for one in chain((name,), numbered) if one not in taken)

    def constant(self, name: str, arg: Value) -> Const:
        value = _constant(self.machine, arg)
        if value is _UNKNOWN:
            raise _refused(self.kernel.obj, f"argument {name} is a {arg.describe()}")
        return Const(value)

    # -- writes ----------------------------------------------------------------------------------

    def written(self) -> frozenset[int]:
        """Return the slots of the tensors that the kernel, or a hook of its tuning, may write."""
        tensors = frozenset(self.slots)
        analysis = WriteAnalysis()
        found = analysis.written(self.kernel.obj, tensors, self.constants)
        for layer in layers(self.kernel.obj):
            found |= tensors if _has_hooks(layer) else _reset_by(layer) & tensors
        for namespace, name, value in analysis.globals_read:
            self.machine.guard(NamespaceFacts(namespace, (NameFact(name, value),)))
        return frozenset(slot for name in found for slot in self.slots[name])

    # -- the grid --------------------------------------------------------------------------------

    def grids(self, grid: Value) -> tuple[tuple[Grid, ...], list[Value]]:
        """Return the grids that the launch may have, and all their numbers in order."""
        if isinstance(grid, SequenceValue):
            return (Grid(len(grid.items)),), list(grid.items)
        grids: list[Grid] = []
        sizes: list[list[Value]] = []
        for when, meta in self.configurations():
            pairs = [(self.machine.constant(name), value) for name, value in meta.items()]
            made = grid.call(self.machine, [DictValue.of(self.machine, pairs)], {})
            made = made.realize(self.machine)
            if not isinstance(made, SequenceValue):
                raise _refused(self.kernel.obj, "its grid function returns no sequence")
            items = [item.realize(self.machine) for item in made.items]
            grids.append(Grid(len(items), when))
            sizes.append(items)
        if len({tuple(map(_described, items)) for items in sizes}) == 1:
            return (Grid(len(sizes[0])),), sizes[0]
        return tuple(grids), [size for items in sizes for size in items]

    def configurations(self) -> list[_Configuration]:
        """Return the tuned metaparameters and all metaparameters of each configuration."""
        defaults = {
            name: self.machine.constant(one.default)
            for name, one in self.signature.items()
            if name not in self.arguments and type(one.default) in ATOMS
        }
        found: list[_Configuration] = [((), self.arguments)]
        source = self.kernel.source
        for layer in layers(self.kernel.obj):
            if layer is not self.kernel.obj and source is not None:
                source = Item(InstanceDict(source), "fn")
            if configs := getattr(layer, "configs", None):
                found = [
                    ((*when, *config.kwargs.items()), self.with_constants(meta, config.kwargs))
                    for when, meta in found
                    for config in configs
                ]
            elif isinstance(values := getattr(layer, "values", None), dict):
                found = [(when, self.with_heuristics(meta, values, source)) for when, meta in found]
        return [(when, {**defaults, **meta}) for when, meta in found]

    def with_constants(
        self, meta: dict[str, Value], given: Mapping[str, object]
    ) -> dict[str, Value]:
        return {**meta, **{name: self.machine.constant(value) for name, value in given.items()}}

    def with_heuristics(
        self, meta: dict[str, Value], functions: Mapping[str, object], source: Source | None
    ) -> dict[str, Value]:
        """Trace the functions that compute metaparameters from the arguments."""
        machine = self.machine
        meta = dict(meta)
        for name, function in functions.items():
            if source is None:
                raise _refused(self.kernel.obj, "its heuristics are not reachable")
            path = Item(Item(InstanceDict(source), "values"), name)
            pairs = [(machine.constant(key), value) for key, value in meta.items()]
            call = machine.lazy(function, path).realize(machine)
            meta[name] = call.call(machine, [DictValue.of(machine, pairs)], {})
        return meta


def _described(size: Value) -> object:
    """Return a key that equal numbers of grids share."""
    if isinstance(size, NumberValue):
        return size.scalar.expr
    return size.value if isinstance(size, ConstantValue) else size


_UNKNOWN = object()


def _constant(machine: Machine, arg: Value) -> object:
    """Return the Python object of an argument that is no tensor and no number; it is guarded."""
    if isinstance(arg, Lazy) and type(arg.obj).__module__.startswith("triton."):
        assert arg.source is not None  # tl.float32, for example
        machine.guard(IdentityIs(arg.source, arg.obj))
        return arg.obj
    arg = arg.realize(machine)
    if arg.is_constant(machine):
        return arg.as_constant(machine)
    return arg.obj if isinstance(arg, KernelValue) else _UNKNOWN


def _has_hooks(layer: Any) -> bool:
    configs = getattr(layer, "configs", None) or ()
    hooks = ("user_defined_pre_hook", "user_defined_post_hook", "pre_run_hooks")
    return any(getattr(layer, name, None) for name in hooks) or any(
        getattr(config, "pre_hook", None) for config in configs
    )


def _reset_by(layer: Any) -> frozenset[str]:
    """Return the arguments that tuning sets to zero or restores."""
    names = (getattr(layer, name, None) or () for name in ("reset_to_zero", "restore_value"))
    return frozenset(one for some in names for one in some if isinstance(one, str))
