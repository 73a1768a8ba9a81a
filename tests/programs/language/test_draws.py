"""Draws of torch's with `generator=None`, as libraries write them, and like parts of tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of

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
# Like parts of other tensors: what is filled is contiguous. Like turned ones it is not.
LIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "a chunk": lambda x: torch.randn_like(x.sin().chunk(2, 1)[1]),
    "every other column": lambda x: torch.rand_like(x.sin()[:, ::2]),
    "the same row": lambda x: torch.randint_like(x.sin()[:1].expand(3, -1), 9),
}
BACKENDS: list[dict[str, Any]] = [
    {"backend": "eager"},
    {"backend": "aot_eager"},
    {"backend": "native"},
    {"backend": "native", "options": {"cpu_tier": "aten"}},
]


@pytest.mark.parametrize("how", BACKENDS, ids=["eager", "aot", "cpp", "aten"])
@pytest.mark.parametrize("draw", [*DRAWS, *LIKE])
def test_draws_are_eagers(draw: str, how: dict[str, Any]) -> None:
    run = (DRAWS | LIKE)[draw]
    compiled = jitmagic.jit(run, fullgraph=True, **how)
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    for seed in range(3):
        torch.manual_seed(seed)
        want, left = run(x), torch.rand(3)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), want)
        assert torch.equal(torch.rand(3), left)


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _seeded(x: Tensor, seed: int) -> Any:
    _seed_all(seed)
    return x + torch.rand(3) * random.random() + torch.from_numpy(np.random.rand(3)).float()


def _seeded_between(x: Tensor, seed: int) -> Any:
    y = torch.rand(3) + x
    torch.manual_seed(seed)
    return y * torch.rand(3)


def _seeded_twice(x: Tensor, seed: int) -> Any:
    random.seed(seed)
    first = random.random()
    random.seed(seed)
    return x * first, first == random.random(), torch.nn.functional.dropout(x, 0.5)


def _seeded_behind_what_raises(x: Tensor, seed: int) -> Any:
    y = x[torch.tensor([seed])]
    _seed_all(3)
    return y + torch.rand(3)


SEEDED: dict[str, tuple[Callable[[Tensor, int], Any], int]] = {
    "all": (_seeded, 0),
    "between draws": (_seeded_between, 1),
    "twice": (_seeded_twice, 1),
    "behind what raises": (_seeded_behind_what_raises, 0),
    "constant": (lambda x, seed: (torch.manual_seed(7), x * torch.rand(3))[1], 0),
    "wrong": (lambda x, seed: (x + 1, np.random.seed(seed - 3)), 2),
}


@pytest.mark.parametrize("how", BACKENDS, ids=["eager", "aot", "cpp", "aten"])
@pytest.mark.parametrize("name", SEEDED)
def test_a_frame_is_seeded(name: str, how: dict[str, Any]) -> None:
    run, breaks = SEEDED[name]
    tagged = jitmagic.jit(run, **how)

    def seen(call: Callable[[Tensor, int], Any], seed: int) -> Any:
        _seed_all(9)
        try:
            found = call(torch.ones(3), seed)
        except (IndexError, ValueError) as error:
            found = type(error)
        return repr((found, torch.rand(2), random.random(), np.random.rand()))

    for seed in (1, 1, 2, 0, 4, 7):
        assert seen(tagged, seed) == seen(run, seed)
    assert counts_of(tagged).breaks <= breaks
