"""The tiers without a C++ compiler have one set of kernels for all sizes, as the C++ tier has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED

SIZES = (6, 8, 34, 4, 16, 18)
W = torch.randn(16, 8)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: torch.tanh(x * 2 + x.shape[0]),
    "reductions": lambda x: (x.sum(0), x.amax(1), x.argmax(0), x.double().sum(), x.prod(1)),
    "rows": lambda x: F.layer_norm(F.gelu(F.linear(x, W)), (16,)).softmax(0),
    "indexes": lambda x: x.gather(0, (x.abs() * 0).long()) + x[torch.arange(x.shape[0]) - 1],
    "shapes": lambda x: torch.cat([x, x[1:] * 2]).cumsum(0).T.contiguous().flip(1),
    "quotients": lambda x: F.interpolate(x[None], scale_factor=1.5) + x.shape[0] // 2 * x.T[0, 0],
    "halves": lambda x: (x.bfloat16() * 2).sum(0) + x.half().amax(1)[0],
}


def _total(made: Any) -> torch.Tensor:
    parts = [made] if isinstance(made, torch.Tensor) else made
    return sum(part.double().sum() for part in parts if part.is_floating_point())


@pytest.mark.parametrize("tier", ["blocks", "numba"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_set_of_kernels(name: str, grad: bool, tier: str) -> None:
    if tier == "numba":
        pytest.importorskip("numba")
    program = PROGRAMS[name]
    compiled = jitmagic.jit(program, dynamic=True, options={"cpu_tier": tier})
    for size in SIZES:
        x = torch.randn(size, 8, requires_grad=grad)
        made, wanted = compiled(x), program(x)
        torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-4)
        if grad:
            ours, eager = (torch.autograd.grad(_total(y), x)[0] for y in (made, wanted))
            torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
    handle = handle_of(compiled)
    assert handle is not None
    assert all(record.outcome == COMPILED for record in handle.journal)
    assert sum(record.kernels > 0 for record in handle.journal) <= 1 + grad
