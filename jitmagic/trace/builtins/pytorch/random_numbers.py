"""Random numbers drawn before the graph: seeds set in a frame, and generators.

Seeding (`torch.manual_seed(0)`, with an int argument or a constant), making a generator
(`numpy.random.default_rng(seed)`) and drawing from a `torch.Generator` (`torch.randn(3,
generator=g)`) are draws (trace/values/numpy/random_streams.py): they run before the graph, in
program order. The graph itself draws from torch's generators after that, so a frame that has drawn
from them before it seeds ends there. A generator that is passed must be one from before the call
and not torch's default one, so that nothing else in the graph draws from it. If eager runs the
frame again from its start, the states are restored. Calls with tensor arguments (multinomial,
bernoulli), and calls that change a generator, break.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ....guards.guard import DifferentObjects, IdentityIs, TypeIs, ValueEquals
from ....guards.source import ImportedModule, ModuleAttr, SlotAttr, Source
from ....lazy_dataclass import dataclass
from ....spec import TensorSpec
from ....symbols.interval import Interval
from ...breaks import GraphBreak, StatefulCall, UnsupportedArguments
from ...entry_state import Seeding
from ...result import BuildTuple, Recipe
from ...values.base import Args, Builder, Kwargs, Machine, Value
from ...values.numbers.number import NumberValue
from ...values.numpy.random_streams import GeneratorObjectValue
from ...values.numpy_scalars import np
from ...values.objects.callables import BuiltinValue
from ...values.objects.identity import IdentityValue
from ...values.objects.opaque import HiddenValue, OpaqueValue
from ...values.tensors.draws import constant_argument, drawn_tensor
from ...values.tensors.tensor import record
from ...wrap import intercepts, wraps
from ..registry import AS_GIVEN, handles, handles_named

__all__: list[str] = []


# -- seeds -----------------------------------------------------------------------------------------


_SHARED = ModuleAttr(ImportedModule("torch"), "default_generator")
# numpy.random.seed and RandomState raise above 32 bits. default_rng and random.Random take any
# natural number, of which those that fit an int64 are traced.
_OF_NUMPY = Interval(0, 2**32 - 1)
_NATURAL = Interval(0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class _Seed:
    """A call of a function that seeds generators."""

    function: Callable[[object], object]

    def __call__(self, seeding: Seeding) -> None:
        self.function(seeding.number)


def _seed(
    machine: Machine,
    function: Callable[[object], object],
    generators: tuple[object, ...],
    args: Args,
    kwargs: Kwargs,
    limits: Interval | None = None,
) -> None:
    name = f"{function.__module__}.{function.__name__}"
    number = _number(machine, name, args, kwargs, limits)

    def seeding(builder: Builder) -> Recipe:
        seeded = BuildTuple(tuple(builder.constant(one) for one in generators))
        return builder.invoke(Seeding, (seeded, builder(number)))

    machine.effects.draw(HiddenValue(seeding), _Seed(function), name)


def _number(
    machine: Machine, name: str, args: Args, kwargs: Kwargs, limits: Interval | None
) -> Value:
    """Return the seed argument."""
    broken = GraphBreak(StatefulCall.of(name=name))
    given = [value.realize(machine) for value in (*args, *kwargs.values())]
    graph = machine.graph
    if len(given) != 1 or graph is not graph.root:
        raise broken
    number = given[0]
    if isinstance(number, NumberValue) and number.as_sourced_int(machine) is not None:
        if limits is not None:
            machine.symbols.require(number.scalar.expr, limits, name)
    elif number.varies or not number.is_constant(machine) or not _is_seed(number, machine, limits):
        raise broken
    return number


def _is_seed(number: Value, machine: Machine, limits: Interval | None) -> bool:
    value = number.as_constant(machine)
    return type(value) is int and (limits or Interval(-(2**63), 2**63 - 1)).has(value)


@handles(torch.manual_seed)
@handles_named("torch", "manual_seed")
def _manual_seed(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # These draws would run after the seed, which is set before the graph.
    if any(node.meta.get("random") for node in machine.graph.root.graph.nodes):
        raise GraphBreak(StatefulCall.of(name="torch.manual_seed"))
    generators = (torch.default_generator, *torch.cuda.default_generators)
    _seed(machine, torch.manual_seed, generators, args, kwargs)
    return machine.wrap(torch.default_generator, _SHARED)


class _SeedFunction(IdentityValue):
    """A function like `random.seed`, which seeds a shared generator."""

    __slots__ = ("generator",)

    def __init__(self, live: object, source: Source, generator: object) -> None:
        super().__init__(live, source)
        self.generator = generator

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # random.seed takes the absolute value of a negative int.
        limits = None if isinstance(self.generator, random.Random) else _OF_NUMPY
        _seed(machine, self.live, (self.generator,), args, kwargs, limits)
        return machine.constant(None)


def _wrap_seed(machine: Machine, obj: object, source: Source) -> Value | None:
    found = next((generator for function, generator in _SEEDS if obj == function), None)
    if found is None:
        return None
    machine.guard(IdentityIs(source, obj))
    return _SeedFunction(obj, source, found)


def _make(pair: tuple[Callable[[int], object], int]) -> object:
    function, seed = pair
    return function(seed)


def _makes_generators(make: Any, limits: Interval) -> None:
    @handles(make)
    def made(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        number = _number(machine, make.__name__, args, kwargs, limits)
        pair = HiddenValue(lambda to: BuildTuple((to.constant(make), to(number))))
        source = machine.effects.draw(pair, _make, make.__name__)
        # The generator with seed 0 is an example: it says which methods there are, and which kinds
        # of numbers they return.
        return GeneratorObjectValue(make(0), source)


_SEEDS: list[tuple[object, object]] = [(random.seed, getattr(random.seed, "__self__"))]  # noqa: B009
if np is not None:
    _SEEDS.append((np.random.seed, np.random.mtrand._rand))
    _makes_generators(np.random.RandomState, _OF_NUMPY)
    _makes_generators(np.random.default_rng, _NATURAL)

    @intercepts(type(np.random.default_rng))  # a method of a Cython type
    def _wrap_maker(machine: Machine, obj: object, source: Source) -> Value | None:
        if obj is not np.random.default_rng:
            return None
        machine.guard(IdentityIs(source, obj))
        return BuiltinValue(obj, source)


_makes_generators(random.Random, _NATURAL)
intercepts(*{type(function) for function, _ in _SEEDS})(_wrap_seed)


# -- generators ------------------------------------------------------------------------------------


class TorchGeneratorValue(OpaqueValue):
    """A generator from before the call."""

    __slots__ = ()


@wraps(torch.Generator)
def _wrap_generator(machine: Machine, obj: torch.Generator, source: Source) -> Value:
    machine.guard(TypeIs(source, torch.Generator))
    return TorchGeneratorValue(torch.Generator, source, obj)


@dataclass(frozen=True, slots=True)
class _Draw:
    """A call of a function that makes a random tensor."""

    function: Callable[..., torch.Tensor]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def __call__(self, generator: torch.Generator) -> torch.Tensor:
        return self.function(*self.args, generator=generator, **self.kwargs)


def _draws(function: Callable[..., torch.Tensor]) -> None:
    @handles(function, like=AS_GIVEN)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        generator = kwargs.get("generator")
        if not isinstance(generator, TorchGeneratorValue):
            return record(machine, function, args, kwargs)
        rest = {name: value for name, value in kwargs.items() if name != "generator"}
        return _drawn(machine, function, generator, args, rest)


def _drawn(
    machine: Machine,
    function: Callable[..., torch.Tensor],
    generator: TorchGeneratorValue,
    args: Args,
    kwargs: Kwargs,
) -> Value:
    live: Any = generator.live
    what = "a generator of random numbers"
    broken = GraphBreak(UnsupportedArguments.of(name=f"torch {function.__name__}()", what=what))
    graph, source = machine.graph, generator.source
    given = tuple(constant_argument(machine, arg, broken) for arg in args)
    named = {name: constant_argument(machine, arg, broken) for name, arg in kwargs.items()}
    device = torch.device(named.get("device") or "cpu")
    if graph is not graph.root or source is None or graph.inference.is_on:
        raise broken
    same = device.type == live.device.type and device.index in (None, live.device.index)
    if live is torch.default_generator or not same or torch.is_inference_mode_enabled():
        raise broken
    try:
        # Gives shape, strides and dtype; on meta no generator advances.
        example = function(*given, **{**named, "device": "meta"})
    except Exception:  # eager raises the same
        raise broken from None
    if example.requires_grad or named.get("out") is not None or named.get("pin_memory"):
        raise broken
    machine.guard(DifferentObjects((source,), (_SHARED,)))
    machine.guard(ValueEquals(SlotAttr(source, "device"), live.device))
    shape, stride = tuple(example.shape), example.stride()
    spec = TensorSpec(shape, stride, example.dtype, live.device)
    name = f"torch.{function.__name__}"
    drawn = machine.effects.draw(generator, _Draw(function, given, named), name)
    return drawn_tensor(machine, name, drawn, spec)


for _function in (torch.rand, torch.randn, torch.randint, torch.randperm):
    _draws(_function)
