"""Recursion of tagged functions: as deep as eager, with eager's exception and no C stack.

frame_checks/in_place.py tests the same on interpreters without torch.
"""

from __future__ import annotations

import sys

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of

X = torch.ones(2)


def plain(x, n):
    return x if n == 0 else plain(x, n - 1) + 1


@jitmagic.jit
def tagged(x, n):
    return x if n == 0 else tagged(x, n - 1) + 1


def plain_even(x, n):
    return x if n == 0 else plain_odd(x, n - 1) * 1.0


def plain_odd(x, n):
    return x + 1 if n == 0 else plain_even(x, n - 1)


@jitmagic.jit
def tagged_even(x, n):
    return x if n == 0 else tagged_odd(x, n - 1) * 1.0


@jitmagic.jit
def tagged_odd(x, n):
    return x + 1 if n == 0 else tagged_even(x, n - 1)


class Net(torch.nn.Module):
    def forward(self, x, n):
        return x if n == 0 else self(x, n - 1) + 1


@jitmagic.jit
class TaggedNet(Net):
    def forward(self, x, n):
        return x if n == 0 else self(x, n - 1) + 1


PAIRS = {
    "itself": (plain, tagged),
    "each other": (plain_even, tagged_even),
    "module": (Net(), jitmagic.jit(Net())),
    "class": (Net(), TaggedNet()),
}


def deepest(function) -> int:
    low, high = 1, 1500
    while high - low > 1:
        middle = (low + high) // 2
        try:
            function(X, middle)
            low = middle
        except RecursionError:
            high = middle
    return low


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
def test_recursion_is_as_deep_as_eagers(pair):
    untagged, function = PAIRS[pair]
    assert deepest(function) >= deepest(untagged) - 2
    assert deepest(function) >= deepest(untagged) - 2
    for n in (0, 5, 70, 150):
        assert torch.equal(function(X, n), untagged(X, n))


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
def test_a_raised_recursion_limit_is_respected():
    limit, codes = sys.getrecursionlimit(), [tagged.__code__, tagged_even.__code__]
    sys.setrecursionlimit(20_000)
    try:
        for _ in range(2):
            assert tagged(X, 10_000)[0] == 10_001
            assert tagged_even(X, 10_000)[0] == 1
    finally:
        sys.setrecursionlimit(limit)
    assert [tagged.__code__, tagged_even.__code__] == codes
    assert handle_of(tagged) is not None


def test_a_compile_deep_in_a_recursion_has_enough_stack():
    made = jitmagic.jit(lambda x: x.sin() * 2)

    def down(n):
        return made(X) if n == 0 else down(n - 1)

    def room(n):
        try:
            return room(n + 1)
        except RecursionError:
            return n

    assert torch.equal(down(room(0) - 40), X.sin() * 2)
    assert str(handle_of(made).outcome) == "compiled"
