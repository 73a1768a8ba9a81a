"""Sums over one-hot rows: they are replaced by their one term, and the nest becomes pointwise."""

from __future__ import annotations

import pytest
import torch

from jitmagic.loops.interp import run
from jitmagic.loops.ir import LoopProgram, Nest, Reduction, store_values, walk
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record

from .test_fusion import TARGET

CLASSES = 7


def gradient(x, index, g):
    """The gradient of a cross-entropy, as its decomposition writes it."""
    chosen = torch.where(torch.arange(CLASSES)[None, :] == index[:, None], g, 0.0)
    return chosen - x.exp() * chosen.sum(1, keepdim=True)


def with_another_sum(x, index, g):
    chosen = torch.where(torch.arange(CLASSES)[None, :] == index[:, None], g, 0.0)
    return chosen - x / x.sum(1, keepdim=True) * chosen.sum(1, keepdim=True)


def scheduled(fn, *args) -> LoopProgram:
    graph, _ = record(fn, *args)
    return schedule(lower(graph, "one_hot"), TARGET, Options()).program


def sums_in(program: LoopProgram) -> int:
    nests = [step for step in program.steps if isinstance(step, Nest)]
    values = walk([value for nest in nests for value in store_values(nest.stores)])
    return sum(isinstance(node, Reduction) for node in values)


@pytest.mark.parametrize(("fn", "sums"), [(gradient, 0), (with_another_sum, 1)])
def test_the_sum_is_its_term(fn, sums):
    args = torch.randn(5, CLASSES), torch.tensor([0, 6, -1, 3, 100]), torch.tensor(-0.5)
    program = scheduled(fn, *args)
    assert sums_in(program) == sums
    (nest,) = (step for step in program.steps if isinstance(step, Nest))
    assert all(bool(store.inner) == bool(sums) for store in nest.stores)
    (made,) = run(program, [x.clone() for x in args])
    torch.testing.assert_close(made, fn(*args), rtol=1e-6, atol=0)


def test_a_row_that_is_no_position_keeps_its_sum():
    def sums(x, index, g):
        return torch.where((torch.arange(CLASSES) * 2)[None, :] == index[:, None], g, 0.0).sum(1)

    args = torch.randn(5, CLASSES), torch.tensor([0, 6, -1, 3, 100]), torch.tensor(-0.5)
    assert sums_in(scheduled(sums, *args)) == 1
