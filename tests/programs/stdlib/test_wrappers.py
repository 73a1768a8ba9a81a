"""Functions made in a frame that stand for others: by wraps, contextmanager, no_grad()(f)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

import jitmagic

from ..counts import counts_of
from ..harness import Program, check


def doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Tensor:
        """Not what is read."""
        return function(*args, **kwargs) * 2

    return inner


def scaled(x: Tensor, by: float = 3.0) -> Tensor:
    """What is read."""
    return x * by


scaled.mark = 5  # type: ignore[attr-defined]


def reads_what_it_wraps(x: Tensor) -> Any:
    made: Any = doubled(scaled)
    told = made.__name__, made.__qualname__, made.__doc__, made.__module__, made.mark
    return made(x), told, made.__wrapped__ is scaled, made.__annotations__


def of_its_own(x: Tensor) -> Any:
    @doubled
    def twice(y: Tensor) -> Tensor:
        return y.sin()

    return twice(x), twice.__name__


def remembers(x: Tensor) -> Tensor:
    known: dict[float, Tensor] = {}

    def remembered(function: Callable[[float], Tensor]) -> Callable[[float], Tensor]:
        @functools.wraps(function)
        def ask(key: float) -> Tensor:
            if key not in known:
                known[key] = function(key)
            return known[key]

        return ask

    @remembered
    def times(key: float) -> Tensor:
        return x * key

    return times(2.0) + times(2.0) + times(3.0)


def manages(x: Tensor) -> Tensor:
    @contextlib.contextmanager
    def shifted(by: float) -> Iterator[Tensor]:
        yield x + by

    with shifted(2.0) as y, contextlib.suppress(KeyError):
        return y * 2
    return x


def without_gradients(x: Tensor) -> Any:
    @torch.no_grad()
    def frozen(y: Tensor) -> Tensor:
        return y * 2

    recorded = torch.enable_grad()(scaled)
    with torch.no_grad():
        again = recorded(x)
    return frozen(x), frozen(x).requires_grad, again.requires_grad, again


def reduced(x: Tensor) -> Tensor:
    """What losses ask for: whether there are other processes."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(x)
    return x * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Its fields cannot be set, what it remembers can."""

    rate: float = 2.0

    @functools.cached_property
    def double(self) -> float:
        return 2 * self.rate


class Guarded(torch.nn.Module):
    """Sees each attribute that is set, but none of those that are remembered."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "table":
            raise AttributeError(name)
        super().__setattr__(name, value)

    @functools.cached_property
    def table(self) -> Tensor:
        return torch.ones(6)


FROZEN, GUARDED = Frozen(3.0), Guarded()


def remembers_past_a_setter(x: Tensor) -> Any:
    made = Frozen()
    told = made.double, made.double, FROZEN.double, "double" in vars(FROZEN)
    total = x * made.double + GUARDED.table + GUARDED.table
    return total, told, list(GUARDED._buffers)


NAMED: Any = functools.update_wrapper(functools.partial(scaled, by=4.0), scaled)
UNNAMED = functools.partial(scaled, by=5.0)
FIRST = operator.itemgetter(2)


def names_of_partials(x: Tensor) -> Any:
    steps: list[Any] = [functools.partial(scaled, by=2.0), UNNAMED, NAMED, scaled]
    steps += [operator.methodcaller("sin"), operator.attrgetter("real"), FIRST]
    names = [getattr(step, "__name__", type(step).__name__) for step in steps]
    told = NAMED.__doc__, NAMED.mark, hasattr(UNNAMED, "mark"), hasattr(steps[0], "mark")
    for step in steps:
        x = step(x)
    return x, " > ".join(names), told


@pytest.mark.parametrize(
    "function",
    [
        reads_what_it_wraps,
        of_its_own,
        remembers,
        manages,
        without_gradients,
        reduced,
        remembers_past_a_setter,
        names_of_partials,
    ],
    ids=lambda f: f.__name__,
)
def test_one_graph(function: Callable[..., Any]) -> None:
    def calls() -> list[tuple[Tensor]]:
        return [(torch.linspace(-1, 1, 6).requires_grad_(),)]

    check(Program(function.__name__, lambda: function, calls, graphs=1))


def test_one_that_leaves_the_frame() -> None:
    def make(x: Tensor) -> tuple[Tensor, Any]:
        return x + 1, doubled(scaled)

    run = jitmagic.jit(make)
    _, made = run(torch.ones(2))
    _, expected = make(torch.ones(2))
    assert torch.equal(made(torch.ones(2)), torch.full((2,), 6.0))
    for name in (*functools.WRAPPER_ASSIGNMENTS, "mark", "__wrapped__"):
        assert getattr(made, name) == getattr(expected, name), name
    assert counts_of(run).breaks == 0


def test_what_it_wraps_gets_another_attribute() -> None:
    def target(x: Tensor) -> Tensor:
        return x

    def ask(x: Tensor) -> tuple[Tensor, int]:
        return x * 2, getattr(doubled(target), "mark", 0)

    run = jitmagic.jit(ask)
    assert run(torch.ones(2))[1] == 0
    target.mark = 7  # type: ignore[attr-defined]
    assert run(torch.ones(2))[1] == 7


def test_arguments_bound_by_a_signature_from_outside() -> None:
    def target(first: Any, *others: Any, scale: float = 2.0, **rest: Any) -> Any:
        return first

    signature = inspect.signature(target)

    def function(t: Any, **given: Any) -> Any:
        bound = signature.bind(t, 1, **given)
        bound.apply_defaults()
        return t * bound.arguments["scale"], bound.args[1:], bound.kwargs

    run = jitmagic.jit(function, backend="eager", fullgraph=True)
    for given in ({}, {"scale": 3.0}, {"other": 1}):
        assert str(run(torch.ones(2), **given)) == str(function(torch.ones(2), **given))
