"""Generators as methods, with all kinds of parameters, with comprehensions and patterns."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .registry import program


class Model(torch.nn.Module):
    """Has a method that is a generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
            yield x

    def extra_repr(self) -> str:
        return "base"


class Derived(Model):
    """Calls super() in a generator."""

    def parts(self, x: Tensor) -> Iterator[Any]:
        yield super().extra_repr(), x * 2
        yield from super().stages(x)


@program(Model.stages)
def methods(f: Any) -> Any:
    model, x = Model(), torch.ones(2, 3, requires_grad=True)
    *_, last = types.MethodType(f, model)(x)
    last.sum().backward()
    return last.detach(), x.grad, model.layers[0].weight.grad


@program(Derived.parts)
def methods_with_super(f: Any) -> Any:
    first, *others = f(Derived(), torch.ones(1, 3))
    return first, [one.detach() for one in others]


def parameters(x: Tensor, /, y: Any = 1, *rest: Any, z: Any = 2, **named: Any) -> Iterator[Any]:
    """Has every kind of parameter."""
    yield x + y
    yield rest, z
    y = 5
    yield x * y, sorted(named)


@program(parameters)
def all_kinds_of_parameters(f: Any) -> Any:
    x = torch.ones(1)
    return (
        list(f(x)),
        list(f(x, 2, 3, 4, z=5, w=6)),
        str(inspect.signature(f)),
        f.__doc__,
        f.__name__,
        f.__defaults__,
    )


def nothing(x: Tensor) -> Iterator[Tensor]:
    yield x
    yield x


@program(nothing)
def nothing_to_compile(f: Any) -> Any:
    return list(f(torch.ones(1)))


def reading_locals(x: Tensor) -> Iterator[Any]:
    y = x + 1
    yield y
    yield sorted(locals())


@program(reading_locals)
def its_own_variables(f: Any) -> Any:
    return list(f(torch.ones(1)))


def comprehending(x: Tensor) -> Iterator[Any]:
    yield [x + k for k in range(2)]
    squares = {k: x * k for k in range(3)}
    yield squares[2]
    lazily = (x + k for k in range(3))
    yield sum(lazily)
    match squares:
        case {1: matched}:
            yield matched


@program(comprehending)
def comprehensions_and_patterns(f: Any) -> Any:
    return list(f(torch.ones(2)))
