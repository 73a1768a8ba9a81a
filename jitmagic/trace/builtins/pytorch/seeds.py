"""Seeds set in a frame (`torch.manual_seed(0)`), and generators made there.

Handles functions that seed shared generators, and functions that make one
(`numpy.random.default_rng(seed)`); the seed is an int argument or a constant. Seeding becomes a
draw without a result (trace/values/contexts/random_streams.py): the seed is set before the graph
runs, in program order with the other draws. The graph itself draws from torch's generators after
that, so a frame that has drawn from them before it seeds ends there. If eager runs the frame again
from its start, the states are restored.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....guards.guard import IdentityIs
from ....guards.source import ImportedModule, ModuleAttr, Source
from ....symbols.interval import Interval
from ...breaks import GraphBreak, StatefulCall
from ...random_states import Seeding
from ...result import BuildTuple, Recipe
from ...values.base import Args, Builder, Kwargs, Machine, Value
from ...values.contexts.random_streams import GeneratorObjectValue
from ...values.numbers.number import NumberValue
from ...values.numpy.emulation import np
from ...values.objects.callables import BuiltinValue
from ...values.objects.identity import IdentityValue
from ...wrap import intercepts
from ..registry import handles, handles_named

__all__: list[str] = []

_SHARED = ModuleAttr(ImportedModule("torch"), "default_generator")
_OF_NUMPY = Interval(0, 2**32 - 1)
_NATURAL = Interval(0, 2**63 - 1)


class _Seeded(Value):
    """Generators, and the seed that they get."""

    __slots__ = ("generators", "number")

    def __init__(self, generators: tuple[Any, ...], number: Value) -> None:
        super().__init__()
        self.generators, self.number = generators, number

    def recipe(self, builder: Builder) -> Recipe:
        generators = BuildTuple(tuple(builder.constant(one) for one in self.generators))
        return builder.invoke(Seeding, (generators, builder(self.number)))


@dataclass(frozen=True, slots=True)
class _Seed:
    """A call of a function that seeds generators."""

    function: Callable[[Any], object]

    def __call__(self, seeding: Seeding) -> None:
        self.function(seeding.number)


def _seed(
    machine: Machine,
    function: Callable[[Any], object],
    generators: tuple[Any, ...],
    args: Args,
    kwargs: Kwargs,
    limits: Interval | None = None,
) -> None:
    name = f"{function.__module__}.{function.__name__}"
    number = _number(machine, name, args, kwargs, limits)
    machine.effects.draw(_Seeded(generators, number), _Seed(function), name)


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
    if any(node.meta.get("random") for node in machine.graph.root.graph.nodes):
        raise GraphBreak(StatefulCall.of(name="torch.manual_seed"))
    generators = (torch.default_generator, *torch.cuda.default_generators)
    _seed(machine, torch.manual_seed, generators, args, kwargs)
    return machine.wrap(torch.default_generator, _SHARED)


class _SeedFunction(IdentityValue):
    """A function like `random.seed`, which seeds a shared generator."""

    __slots__ = ("generator",)

    def __init__(self, live: Any, source: Source, generator: Any) -> None:
        super().__init__(live, source)
        self.generator = generator

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        limits = None if isinstance(self.generator, random.Random) else _OF_NUMPY
        _seed(machine, self.live, (self.generator,), args, kwargs, limits)
        return machine.constant(None)


def _wrap_seed(machine: Machine, obj: Any, source: Source) -> Value | None:
    found = next((generator for function, generator in _SEEDS if obj == function), None)
    if found is None:
        return None
    machine.guard(IdentityIs(source, obj))
    return _SeedFunction(obj, source, found)


class _GeneratorMaker(Value):
    """A function that makes a generator, and the seed."""

    __slots__ = ("make", "number")

    def __init__(self, make: Callable[[int], object], number: Value) -> None:
        super().__init__()
        self.make, self.number = make, number

    def recipe(self, builder: Builder) -> Recipe:
        return BuildTuple((builder.constant(self.make), builder(self.number)))


def _make(pair: tuple[Callable[[int], object], int]) -> object:
    function, seed = pair
    return function(seed)


def _makes_generators(make: Any, limits: Interval) -> None:
    @handles(make)
    def made(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        number = _number(machine, make.__name__, args, kwargs, limits)
        source = machine.effects.draw(_GeneratorMaker(make, number), _make, make.__name__)
        return GeneratorObjectValue(make(0), source)


_SEEDS: list[tuple[Any, Any]] = [(random.seed, getattr(random.seed, "__self__"))]  # noqa: B009
if np is not None:
    _SEEDS.append((np.random.seed, np.random.mtrand._rand))
    _makes_generators(np.random.RandomState, _OF_NUMPY)
    _makes_generators(np.random.default_rng, _NATURAL)

    @intercepts(type(np.random.default_rng))  # a method of a Cython type
    def _wrap_maker(machine: Machine, obj: Any, source: Source) -> Value | None:
        if obj is not np.random.default_rng:
            return None
        machine.guard(IdentityIs(source, obj))
        return BuiltinValue(obj, source)


_makes_generators(random.Random, _NATURAL)
intercepts(*{type(function) for function, _ in _SEEDS})(_wrap_seed)
