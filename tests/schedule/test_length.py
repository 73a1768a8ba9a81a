"""The cost of scheduling grows linearly with a program: values created, kernels of bounded size."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest
import torch

from jitmagic.loops.ir import Load, Value, walk
from jitmagic.options import Options
from jitmagic.schedule import schedule, score
from jitmagic.schedule.fuse import MAX_BUFFERS, MAX_NODES
from jitmagic.schedule.groups import Group
from jitmagic.schedule.score import walk_cost
from jitmagic.symbols.interned import Interned

from .test_fusion import TARGET, lowered, nests


def line(x, n):
    for k in range(n):
        x = x * 1.0001 + k
    return x


def reversed_line(x, n):
    """The long value is the second operand."""
    for k in range(n):
        x = k - 1.0001 * x
    return x


def two_branches(x, n):
    """Each step reads the value before it twice."""
    for _ in range(n // 2):
        x = x + 0.5 * x.sigmoid() * x
    return x


def turning(x, n):
    """Every step reads the one before along the other axis."""
    for k in range(n):
        x = x.t() + k
    return x


def row_by_row(x, n):
    """A row is added in each step: loads of another shape next to the chain."""
    row = x[0]
    for k in range(n):
        x = x * row + k
    return x


def fan(x, n):
    """Many results of one input."""
    return tuple(x * k + 1 for k in range(n))


LONG = 900
SHAPES = (line, reversed_line, two_branches, turning, row_by_row, fan)


class Scheduled(NamedTuple):
    values: int  # nodes that scheduling creates
    costs: int  # nodes whose cost it computes
    kernels: tuple


@cache
def scheduled(program, n):
    """A program of `n` steps; the longest take a second, so they are scheduled for all tests."""
    unfused = lowered(lambda x: program(x, n), torch.randn(16, 16))
    counts = Counter()
    make, ask = Interned.__call__, score.op_cost

    def counted(cls, *args, **kwargs):
        counts["values"] += issubclass(cls, Value)
        return make(cls, *args, **kwargs)

    def counted_cost(value):
        counts["costs"] += 1
        return ask(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interned, "__call__", counted)
        patch.setattr(score, "op_cost", counted_cost)
        kernels = tuple(nests(schedule(unfused, TARGET, Options())))
    return Scheduled(counts["values"], counts["costs"], kernels)


@pytest.mark.parametrize("program", SHAPES)
def test_created_values_grow_linearly(program):
    # 4 times as long; quadratic growth would be 16
    assert 0 < scheduled(program, LONG).values < 6 * scheduled(program, LONG // 4).values


@pytest.mark.parametrize("program", SHAPES)
def test_costs_are_added_up_as_values_grow(program):
    """Each step asks for the cost of a longer value, which is not summed up from its start."""
    # summed up from the start, a line has 1,500,000
    assert 0 < scheduled(program, LONG).costs < 100 * LONG


def test_nests_that_share_nothing_are_not_compared(monkeypatch):
    """Updates of a list of parameters: each nest has memory of its own."""

    def update(*params):
        return tuple(torch._foreach_add(torch._foreach_mul(params, 0.9), params, alpha=-0.1))

    unfused = lowered(update, *(torch.randn(4) for _ in range(100)))
    shapes = 0
    ask = Group.shape.fget

    def counted_shape(group):
        nonlocal shapes
        shapes += 1
        return ask(group)

    with monkeypatch.context() as patch:
        patch.setattr(Group, "shape", property(counted_shape))
        assert len(nests(schedule(unfused, TARGET, Options()))) == 100
    assert 0 < shapes < 30 * 100  # 5,000 more if computed for each pair


@pytest.mark.parametrize("program", SHAPES)
def test_kernels_of_long_programs_are_bounded(program):
    kernels = scheduled(program, LONG).kernels
    assert len(kernels) > 1
    for nest in kernels:
        assert walk_cost(nest.stores) <= MAX_NODES + 50
        loads = {v.buffer for s in nest.stores for v in walk((s.value,)) if isinstance(v, Load)}
        assert len(loads) + len(nest.stores) <= MAX_BUFFERS
