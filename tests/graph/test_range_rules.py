"""The interval of a scalar operation decides a branch on its results, unless they may be nan."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import jitmagic
from jitmagic.operators import SCALARS, ScalarOperation

BOUNDED = [row for row in SCALARS.values() if row.bounds]
PARTIAL = [row for row in BOUNDED if row.domain != (-math.inf, math.inf)]


def branching(row: ScalarOperation, start: float) -> Callable[[torch.Tensor], torch.Tensor]:
    assert row.bounds is not None
    least = row.bounds[0] - 0.5

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = row.reference(torch.rand_like(x) + start)
        return y + x if (y > least).all() else y - x

    return fn


def results(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return fn(x)


@pytest.mark.parametrize("row", BOUNDED, ids=lambda row: row.name)
def test_bounds_decide_a_branch(row: ScalarOperation) -> None:
    inside = -0.5 if row.domain[0] == -1 else max(row.domain[0], 0.0) + 0.5
    fn, x = branching(row, inside), torch.ones(8)
    torch.testing.assert_close(results(jitmagic.jit(fn, fullgraph=True), x), results(fn, x))


@pytest.mark.parametrize("row", PARTIAL, ids=lambda row: row.name)
def test_no_branch_is_decided_outside_the_domain(row: ScalarOperation) -> None:
    outside = row.domain[0] - 2.0 if row.domain[0] > -1e30 else math.inf
    fn, x = branching(row, outside), torch.ones(8)
    torch.testing.assert_close(results(jitmagic.jit(fn), x), results(fn, x), equal_nan=True)
    with pytest.raises(jitmagic.Unsupported, match="depends on tensor data"):
        jitmagic.jit(fn, fullgraph=True)(x)
