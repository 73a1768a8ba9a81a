"""Writes of complex values, and of dtypes without loops, into memory that the caller holds."""

from __future__ import annotations

import warnings

import pytest
import torch

import jitmagic

from ..counts import counts_of


def agree(function, make, calls=3):
    """The same results and the same state after each call; no fallback is told of."""
    compiled = jitmagic.jit(function)
    plain, ours = make(), make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(calls):
            wanted, have = function(*plain), compiled(*ours)
            torch.testing.assert_close(have, wanted, rtol=1e-6, atol=1e-6)
            for a, b in zip(ours, plain, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
                assert a._version == b._version
    counts = counts_of(compiled)
    assert (counts.graphs, counts.breaks) == (1, 0)


def signal(*shape):
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))


def rotate(state, phase):
    state.mul_(phase)
    return state.abs().sum()


def replace(state, x):
    state.copy_(torch.fft.fft(x))
    return state.real * 2


def roll_in_place(state):
    state[1:] = state[:-1] * 0.5
    return state.abs()


def reverse(state):
    state.copy_(state.flip(0))
    return state + 0


def swap(state):
    state.copy_(state.t().clone())
    return state.angle().cos()


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (rotate, lambda: (signal(6), signal(6)[:1])),
        (replace, lambda: (signal(8), torch.randn(8, generator=torch.Generator()))),
        (roll_in_place, lambda: (signal(5, 3),)),
        (reverse, lambda: (signal(7),)),
        (swap, lambda: (signal(4, 4),)),
        (rotate, lambda: (signal(6, 2).t(), signal(6, 2).t())),
    ],
)
def test_complex_state(function, make):
    agree(function, make)


def test_words_without_loops():
    def keep(state, x):
        state.copy_(x)
        return x.to(torch.int64) + 1

    agree(keep, lambda: (torch.zeros(4, dtype=torch.uint64), torch.arange(4).to(torch.uint64)))
