"""Floats that vary in calls of torch that are no arithmetic, on a GPU: the CPU's family."""

from __future__ import annotations

import warnings

import pytest
import torch

import jitmagic
from tests.programs.counts import counts_of, eager_of
from tests.programs.language.number_calls import CALLS, outcome

pytestmark = pytest.mark.device


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", CALLS)
def test_ten_numbers_take_two_compiles(name: str, mode: str) -> None:
    program, numbers = CALLS[name]
    tagged = jitmagic.jit(lambda x, s: program(x, s), mode=mode)
    x = torch.arange(32.0, device="cuda").reshape(4, 8) / 8 - 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            wanted, got = outcome(program, x, number), outcome(tagged, x, number)
            if any(isinstance(part, str) for part in (*wanted, *got)):
                assert got == wanted, number
                continue
            torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)
    made = counts_of(tagged)
    assert not eager_of(tagged) and made.breaks == 0 and made.graphs <= 2
