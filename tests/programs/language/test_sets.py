"""Iterating over sets: in the order that Python's own set has, where that can be known."""

from __future__ import annotations

import random

import pytest
import torch

import jitmagic

from ..counts import counts_of, eager_of


def grown(words, cut):
    """A function whose sets come about item by item."""

    def iterates(x):
        some = set(list(words[:cut]))
        for word in words[cut:]:
            some.add(word)
        return x + 1, [a for a in some], list({w for w in words}), [b for b in frozenset(words)]

    return iterates


@pytest.mark.parametrize("seed", range(30))
def test_order_of_sets_that_grow(seed):
    draw = random.Random(seed)
    count = draw.randint(1, 40)
    words = [
        "".join(draw.choices("abcdef", k=3)) if draw.random() < 0.7 else draw.randint(-5, 9999)
        for _ in range(count)
    ]
    words += words[:2]
    fn = grown(tuple(words), draw.randint(0, count))
    tagged = jitmagic.jit(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        assert tagged(torch.ones(1))[1:] == fn(torch.ones(1))[1:]


def discarded(x):
    some = set(["a", "b", "c", "d"])
    some.discard("b")
    return x + 1, list(some)


def copied(x):
    return x + 1, list(set(set(["a", "b", "c", "d"])))


def merged(x):
    return x + 1, list({"a", "b"} | {"d", "e"}), list({1, 9} & {True, 9}), list({"a", "b"} ^ {"a"})


def taken(x):
    some = set(("a", "b", "c", "d"))
    return x + 1, some.pop(), some.pop(), list(some), {1.0}.union([1], "xyz"), some


def literal(x):
    return x + 1, list({"a", "b", "c", "d"})  # of a constant, whose table nobody knows


def by_address(x):
    return x + 1, [type(one) for one in {object(), object()}]


@pytest.mark.parametrize("program", [discarded, copied, merged, taken])
def test_set_built_by_other_steps_has_pythons_order(program):
    tagged = jitmagic.jit(program, backend="eager", fullgraph=True)
    for _ in range(2):
        assert tagged(torch.ones(1))[1:] == program(torch.ones(1))[1:]


@pytest.mark.parametrize("program", [by_address, literal])
def test_unknown_orders_break_the_graph(program):
    tagged = jitmagic.jit(program, backend="eager")
    for _ in range(2):
        assert tagged(torch.ones(1))[1:] == program(torch.ones(1))[1:]
    assert counts_of(tagged).breaks + len(eager_of(tagged)) > 0
