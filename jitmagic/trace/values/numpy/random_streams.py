"""Models random generators of Python and numpy: `random.random()`, `rng.normal(size=3)`.

Input: a live generator, or one of its bound methods, such as the functions of `random` and
`numpy.random`. Output: draws (`Drawn`), which run in program order before the graph. That is valid
because the result of a draw depends only on earlier draws. A number becomes a symbol without a
hint, an array becomes a graph input.

The tracer never draws from the live generator. A freshly seeded generator of the same class shows
the type and shape of the result, so code that needs the number itself breaks at the draw.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

import torch

from ....guards.guard import IdentityIs, KeyAbsent, TypeIs
from ....guards.source import ArrayMemory, Drawn, InstanceDict, Source
from ....lazy_dataclass import dataclass
from ....spec import spec_of
from ....symbols.interval import Interval
from ....symbols.symbolic_numbers import symbols_of
from ...breaks import GraphBreak, StatefulCall
from ...result import Recipe
from ...wrap import intercepts, wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..numbers.number import NumberValue, drawn_number, is_next_draw_constant
from ..numpy_scalars import ARRAY_SCALARS, np
from ..objects.class_facts import attribute_of_class, guard_attribute
from ..objects.identity import IdentityValue
from ..objects.opaque import WithoutOperators
from ..tensors.draws import constant_argument, drawn_tensor
from .arrays import ArrayValue

__all__ = ["GeneratorObjectValue"]

_MAKERS: Mapping[type, Callable[[], Any]] = {
    random.Random: partial(random.Random, 0),
    **({} if np is None else {
        np.random.RandomState: partial(np.random.RandomState, 0),
        np.random.Generator: partial(np.random.default_rng, 0),
    }),
}  # fmt: skip
# These change the state, or write to their argument.
_NO_DRAWS = frozenset(
    "seed getstate setstate get_state set_state spawn shuffle bytes randbytes getrandbits".split()
)
_DTYPES = {int: torch.int64, float: torch.float64}
_UNIT = Interval(0.0, 1.0)
_TRIES = 32  # example draws that test whether negative numbers are likely
_RANGES = dict.fromkeys(("random", "rand", "random_sample", "beta", "betavariate"), _UNIT)
_CPU = torch.device("cpu")


class GeneratorObjectValue(WithoutOperators):
    """A generator with a source, or a global one.

    If the frame creates the generator, its source is a draw and `live` is a stand-in of its class.
    """

    __slots__ = ("live",)

    def __init__(self, live: object, source: Source | None) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return type(self.live)

    def identity(self) -> object:
        return self.live if self.source is None else None

    def get_attr(self, machine: Machine, name: str) -> Value:
        kind = type(self.live)
        raw = attribute_of_class(kind, name)
        if not callable(raw) or name.startswith("_"):
            self.refuse(machine, f"attribute {name!r}")
        is_live = not isinstance(self.source, Drawn)
        # random.Random is a Python class, so `rng.random = f` hides the method for one instance.
        if hasattr(self.live, "__dict__") and self.source is not None and is_live:
            if name in vars(self.live):
                self.refuse(machine, f"attribute {name!r}")
            machine.guard(KeyAbsent(InstanceDict(self.source), name))
        guard_attribute(machine, kind, name, raw)
        return DrawingMethod(self, name)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        return builder.constant(self.live)

    def describe(self) -> str:
        return f"{type(self.live).__qualname__} object"


class DrawingMethod(WithoutOperators):
    """A bound method of a generator."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: GeneratorObjectValue, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self, machine: Machine) -> type:
        return type(getattr(self.owner.live, self.name))

    def truth(self, machine: Machine) -> bool:
        return True

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return _drawn(machine, self.owner, self.name, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant(self.name)))

    def describe(self) -> str:
        return f"{type(self.owner.live).__name__}.{self.name}"


class GlobalDrawingFunction(IdentityValue):
    """A function of `random` or `numpy.random`, which is a method of the global generator."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner = GeneratorObjectValue(self.live.__self__, None)
        return _drawn(machine, owner, self.live.__name__, args, kwargs)

    def describe(self) -> str:
        return f"{type(self.live.__self__).__name__}.{self.live.__name__}"


# ------------------------------------------------------------------------------------------- draws


def _drawn(
    machine: Machine, owner: GeneratorObjectValue, name: str, args: Args, kwargs: Kwargs
) -> Value:
    label = f"{type(owner.live).__name__}.{name}"
    broken = GraphBreak(StatefulCall.of(name=label))
    graph = machine.graph
    # A subgraph (a backward, a transform) runs at another time than the frame's draws.
    if name in _NO_DRAWS or graph is not graph.root or is_next_draw_constant(machine):
        raise broken
    positional = [constant_argument(machine, arg, broken) for arg in args]
    named = {key: constant_argument(machine, arg, broken) for key, arg in kwargs.items()}
    call = methodcaller(name, *positional, **named)
    # The trace must not advance the live generator, so it draws the example from another.
    generator = _MAKERS[type(owner.live)]()
    try:
        example = call(generator)
    except Exception:  # the call is invalid: eager raises the same
        raise broken from None
    kind = type(example)
    # One example does not show the type of the next choice from [1, 2.5].
    if name == "choice" and not (positional and _have_one_type(positional[0])):
        raise broken
    if kind in _DTYPES:
        source = machine.effects.draw(owner, call, label)
        limits = _limits(owner.live, name, positional, named) if kind is int else _RANGES.get(name)
        number = drawn_number(machine, source, kind, limits)
        if kind is int and all(call(generator) >= 0 for _ in range(_TRIES)):
            _allow_as_size(machine, number)  # rarely negative, so an assertion rarely fails
        return number
    if np is None or (kind is not np.ndarray and kind not in ARRAY_SCALARS):
        raise broken
    perform = call if kind is np.ndarray else _AsArray(call)
    try:
        spec = spec_of(torch.from_numpy(np.asarray(example)))
    # torch has no dtype for arrays of str or of objects.
    except (TypeError, ValueError):
        raise broken from None
    source = machine.effects.draw(owner, perform, label)
    return ArrayValue(drawn_tensor(machine, label, ArrayMemory(source), spec), kind)


def _have_one_type(choices: Any) -> bool:
    """Return whether all items of a choice have one type."""
    return isinstance(choices, int) or len(set(map(type, choices))) == 1


@dataclass(frozen=True, slots=True)
class _AsArray:
    """A draw that converts a numpy scalar to a 0-dim array."""

    call: Callable[[Any], object]

    def __call__(self, generator: object) -> object:
        return np.asarray(self.call(generator))


def _limits(
    generator: object, name: str, args: list[Any], named: dict[str, Any]
) -> Interval | None:
    """Return the range of the ints that a draw gives, or None if it is unknown.

    It is known for one or two positional bounds; a third argument may be a negative step.
    """
    if named or not 0 < len(args) <= 2:
        return None
    low, high = args if args[1:] and args[1] is not None else (0, args[0])
    # random.randint() includes the upper bound, numpy's randint() excludes it.
    if name == "randint" and isinstance(generator, random.Random):
        return Interval(low, high)
    if name == "choice":
        choices = range(args[0]) if isinstance(args[0], int) else args[0]
        return Interval(min(choices), max(choices))
    return Interval(low, high - 1) if name in ("randint", "randrange", "integers") else None


def _allow_as_size(machine: Machine, number: NumberValue) -> None:
    """Allow the drawn number as an index, bound or size.

    If its value is invalid in a call, eager reruns the frame with the same draws. That is too slow
    for numbers that are often negative (shifts in both directions), which the caller excludes.
    """
    (symbol,) = symbols_of(number.scalar.expr)
    assert number.scalar.node is not None
    machine.symbols.read_from[symbol] = number.scalar.node


# ----------------------------------------------------------------------------------------- wrapping


@intercepts(types.MethodType, types.BuiltinFunctionType)
def _intercept_bound(machine: Machine, obj: Any, source: Source) -> Value | None:
    # builtins/pytorch/random_numbers.py handles `seed`, which draws nothing.
    # `random.random` is a bound method of the module's own generator, `random._inst`.
    if type(obj.__self__) not in _MAKERS or obj.__name__ == "seed":
        return None
    machine.guard(IdentityIs(source, obj))
    return GlobalDrawingFunction(obj, source)


def _wrap_generator(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return GeneratorObjectValue(obj, source)


wraps(*_MAKERS)(_wrap_generator)
