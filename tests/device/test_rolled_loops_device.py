"""Loops of varying length on a GPU: a round is one set of kernels, with CUDA graphs as well."""

from __future__ import annotations

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from tests.symbolic.test_rolled_loops import LENGTHS, MODELS, PROGRAMS, compare

pytestmark = pytest.mark.device


# A round's backward finds its inputs elsewhere each time: it says so, and is launched as usual.
@pytest.mark.filterwarnings("ignore:backward. not replayed:jitmagic.FallbackWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", [*PROGRAMS, *MODELS])
def test_any_number_of_rounds(name: str, train: bool, mode: str) -> None:
    torch.manual_seed(0)
    plain = PROGRAMS[name] if name in PROGRAMS else MODELS[name]().double().cuda()
    made = jitmagic.jit(plain, mode=mode)
    for length in (*LENGTHS, 1, 0, 10):
        compare(made, plain, length, train, "cuda")
    assert handle_of(made).given_up is None
