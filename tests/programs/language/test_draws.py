"""Draws of torch's with `generator=None`, as libraries write them: those of the default one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "randn": lambda x: x + torch.randn(x.shape, generator=None),
    "randn of a dtype": lambda x: x + torch.randn(2, 8, generator=None, dtype=torch.float64),
    "rand": lambda x: x * torch.rand(2, 8, generator=None),
    "randint": lambda x: x + torch.randint(5, (2, 8), generator=None),
    "randint between": lambda x: x + torch.randint(2, 5, (2, 8), generator=None),
    "randperm": lambda x: x[:, torch.randperm(8, generator=None)],
    "normal": lambda x: torch.normal(0.0, 1.0, (2, 8), generator=None) + x,
    "normal around": lambda x: torch.normal(x, 1.0, generator=None),
    "normal as wide": lambda x: torch.normal(0.5, x.abs(), generator=None),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid(), generator=None),
    "multinomial": lambda x: torch.multinomial(x.exp(), 2, generator=None),
    "uniform_": lambda x: torch.empty(2, 8).uniform_(0, 1, generator=None) + x,
    "normal_": lambda x: torch.empty_like(x).normal_(generator=None),
}
BACKENDS: list[dict[str, Any]] = [
    {"backend": "eager"},
    {"backend": "aot_eager"},
    {"backend": "native"},
    {"backend": "native", "options": {"cpu_tier": "aten"}},
]


@pytest.mark.parametrize("how", BACKENDS, ids=["eager", "aot", "cpp", "aten"])
@pytest.mark.parametrize("draw", DRAWS)
def test_no_generator_is_the_default_one(draw: str, how: dict[str, Any]) -> None:
    run = DRAWS[draw]
    compiled = jitmagic.jit(run, fullgraph=True, **how)
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    for seed in range(3):
        torch.manual_seed(seed)
        want, left = run(x), torch.rand(3)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), want)
        assert torch.equal(torch.rand(3), left)
