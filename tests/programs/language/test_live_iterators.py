"""Loops that a graph break cuts in two: the rest is one graph, iterators end where eager's do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from ..harness import Program, check

FACTORS = [1.5, -2.0, 0.5, 3.0, -1.0, 2.5]
TABLE = {f"k{i}": factor for i, factor in enumerate(FACTORS)}


def _scale(number: int) -> float:
    return number * 0.5


LOOPS: dict[str, Callable[[], Any]] = {
    "list": lambda: FACTORS,
    "tuple": lambda: tuple(FACTORS),
    "range": lambda: range(6),
    "range with a step": lambda: range(12, 0, -2),
    "reversed list": lambda: reversed(FACTORS),
    "reversed range": lambda: reversed(range(6)),
    "dict": lambda: TABLE.values(),
    "map": lambda: map(_scale, range(6)),
    "filter": lambda: filter(None, [1, 0, 2, 0, 3, 4, 5, 6]),
    "chained map": lambda: map(_scale, map(abs, FACTORS)),
}  # fmt: skip
PAIRS: dict[str, Callable[[], Any]] = {
    "enumerate": lambda: enumerate(FACTORS),
    "enumerate from 3": lambda: enumerate(reversed(FACTORS), 3),
    "enumerate of a dict": lambda: enumerate(TABLE.values()),
    "zip of a dict": lambda: zip(range(6), TABLE.values()),
    "zip": lambda: zip(FACTORS, range(9)),
    "strict zip": lambda: zip(FACTORS, range(6), strict=True),
    "map of two": lambda: map(divmod, range(6), range(1, 7)),
}


def _single(make: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        trips = 0
        for factor in make():
            x = x * factor + 1
            if trips == 1:
                jitmagic.graph_break()
            x = x.sin()
            trips += 1
        return x + trips

    return program


def _pairs(make: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        trips = 0
        for number, factor in make():
            x = x * factor + number
            if trips == 1:
                jitmagic.graph_break()
            x = x.sin()
            trips += 1
        return x + trips

    return program


@pytest.mark.parametrize("name", LOOPS)
def test_rest_of_a_loop_is_one_graph(name: str) -> None:
    check(Program(name, lambda: _single(LOOPS[name]), _inputs, graphs=2, breaks=1))


@pytest.mark.parametrize("name", PAIRS)
def test_the_rest_of_a_loop_over_pairs(name: str) -> None:
    check(Program(name, lambda: _pairs(PAIRS[name]), _inputs, graphs=2, breaks=1))


def _inputs() -> list[tuple[Tensor]]:
    return [(torch.linspace(-1, 1, 5, requires_grad=True),)]


class Block(nn.Module):
    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.breaks:
            jitmagic.graph_break()
        return x.tanh()


class Blocks(nn.Module):
    def __init__(self, count: int, breaking: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(i == breaking) for i in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x) * (number + 1)
        return x


@pytest.mark.parametrize("breaking", [0, 5, 11])
def test_one_break_in_a_callee_costs_its_own_graphs(breaking: int) -> None:
    """What comes before, the callee's two, what comes after."""
    run = jitmagic.jit(Blocks(12, breaking), backend="eager")
    run(torch.randn(2, 4))
    assert counts_of(run).graphs == (3 if breaking == 0 else 4)
    assert counts_of(run).breaks == 2


def consume(x: Tensor, iterator: Iterator[float]) -> Tensor:
    for factor in iterator:
        x = x * factor + 1
    return x


def consume_some(x: Tensor, iterator: Iterator[float]) -> Tensor:
    for factor in iterator:
        x = x * factor
        if factor == 0.5:
            break
    return x


def consume_with_a_break(x: Tensor, iterator: Iterator[float]) -> Tensor:
    for factor in iterator:
        x = x * factor
        jitmagic.graph_break()
        x = x + next(iterator, 0.5)
    return x


def consume_twice(x: Tensor, iterator: Iterator[float]) -> Tensor:
    total = x * sum(iterator)
    return total + sum(iterator)


def consume_two_ways(x: Tensor, iterator: Iterator[float]) -> Tensor:
    for number, factor in enumerate(iterator):
        x = x * factor + number
        if number == 0:
            jitmagic.graph_break()
            x = x * next(iterator)
    return x


def grow_meanwhile(x: Tensor, iterator: Iterator[float]) -> Tensor:
    numbers = [2.0, 3.0]
    trips = 0
    for number in numbers:
        x = x * number
        if trips == 0:
            jitmagic.graph_break()
        if len(numbers) < 4:
            numbers.append(number + 1)
        trips += 1
    return x + len(numbers)


def shrink_meanwhile(x: Tensor, iterator: Iterator[float]) -> Tensor:
    numbers = [2.0, 3.0, 4.0, 5.0, 6.0]
    for number in numbers:
        x = x * number
        if number == 2.0:
            jitmagic.graph_break()
        numbers.pop()
    return x + len(numbers)


HELD = [consume, consume_some, consume_with_a_break, consume_twice, consume_two_ways,
        grow_meanwhile, shrink_meanwhile]  # fmt: skip


@pytest.mark.parametrize("make", [iter, reversed, lambda xs: iter(dict.fromkeys(xs)),
                                  lambda xs: map(abs, xs), lambda xs: (x for x in xs)])  # fmt: skip
@pytest.mark.parametrize("function", HELD)
def test_iterators_of_the_caller_advance_as_in_eager(function: Any, make: Any) -> None:
    run = jitmagic.jit(function, backend="eager")
    for taken, numbers in itertools.product((0, 1, 2), (FACTORS, FACTORS[:4])):
        seen = []
        for target in (function, run):
            iterator = make(list(numbers))
            for _ in range(taken):
                next(iterator)
            result = target(torch.ones(3), iterator)
            seen.append((result, list(iterator)))
        torch.testing.assert_close(seen[1], seen[0])


def test_loop_that_breaks_each_iteration_is_not_recompiled_per_iteration() -> None:
    def program(x: Tensor, layers: list[nn.Module]) -> Tensor:
        for layer in layers:
            x = layer(x)
            jitmagic.graph_break()
            x = x.tanh()
        return x

    layers = [nn.Linear(4, 4) for _ in range(10)]
    run = jitmagic.jit(program, backend="eager")
    x = torch.randn(2, 4)
    torch.testing.assert_close(run(x, layers), program(x, layers))
    torch.testing.assert_close(run(x, layers[:7]), program(x, layers[:7]))
    assert counts_of(run).graphs <= 4


def test_iterator_position_is_guarded() -> None:
    def program(x: Tensor, trips: int) -> Tensor:
        passed = 0
        for factor in FACTORS:
            x = x * factor + 1
            passed += 1
            if passed == trips:
                jitmagic.graph_break()
        return x

    run = jitmagic.jit(program, backend="eager")
    x = torch.randn(3)
    for trips in (2, 4, 2, 6, 1, 3, 9):
        torch.testing.assert_close(run(x, trips), program(x, trips))
