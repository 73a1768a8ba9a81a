"""Subgraphs that run one after the other as one callable."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from jitmagic.extension import runtime_module

SplitGraph = runtime_module().SplitGraph


class Value:
    """Something that can be watched."""


def test_values_reach_the_subgraphs_that_read_them() -> None:
    seen = []

    def first(a: int, b: int) -> tuple[int, int]:
        seen.append((a, b))
        return a + b, a - b

    def second(total: int, a: int) -> tuple[int]:
        return (total * a,)

    run = SplitGraph(2, ((first, (0, 1), 2, ()), (second, (2, 0), 1, (2,))), (4, 3, 0, 4))
    assert run(5, 3) == (40, 2, 5, 40) and seen == [(5, 3)]


def test_dead_values_are_released_before_the_next_subgraph_runs() -> None:
    watched: list[Any] = []

    def make() -> tuple[Value]:
        value = Value()
        watched.append(weakref.ref(value))
        return (value,)

    def alive(value: Value) -> tuple[bool]:
        return (watched[0]() is value,)

    def dead() -> tuple[bool]:
        return (watched[0]() is None,)

    subgraphs = ((make, (), 1, ()), (alive, (0,), 1, (0,)), (dead, (), 1, ()))
    assert SplitGraph(0, subgraphs, (1, 2))() == (True, True)


def test_errors_pass_and_wrong_shapes_are_named() -> None:
    def fails() -> tuple[()]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        SplitGraph(0, ((fails, (), 0, ()),), ())()
    with pytest.raises(TypeError, match="a subgraph returns a tuple of 2"):
        SplitGraph(0, ((lambda: (1,), (), 2, ()),), ())()
    with pytest.raises(TypeError, match="takes 1 tensors, got 2"):
        SplitGraph(1, (), (0,))(1, 2)
    with pytest.raises(ValueError, match="slot 3 is out of range: there are 1"):
        SplitGraph(1, ((fails, (3,), 0, ()),), ())
    with pytest.raises(ValueError, match="slot 1 is out of range: there are 1"):
        SplitGraph(1, (), (1,))


def test_dead_values_cannot_be_read() -> None:
    """Such a subgraph, or a result of it, would be a null pointer."""
    last = (lambda a: (a,), (0,), 1, (0,))
    with pytest.raises(ValueError, match="the value at slot 0 has been released"):
        SplitGraph(1, (last, (lambda a: (a,), (0,), 1, ())), (1,))
    with pytest.raises(ValueError, match="the value at slot 0 has been released"):
        SplitGraph(1, (last,), (0,))
    with pytest.raises(ValueError, match="a subgraph has -1 outputs"):
        SplitGraph(1, ((lambda: (), (), -1, ()),), ())
