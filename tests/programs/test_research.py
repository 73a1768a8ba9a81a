"""Programs of research notebooks: adapters around models, samplers, losses, sets of numbers.

Each runs plainly and compiled, twice over, and must show the same; see harness.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from .harness import Program, check


def r(*shape: int, grad: bool = False) -> Tensor:
    """A tensor that depends on its shape alone."""
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


class Adapter(nn.Module):
    """Unknown names are looked up in its settings, then in what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.settings = {"alpha": 0.5}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in self.__dict__["settings"]:
                return self.settings[name]
            return getattr(self.inner, name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.alpha + self.weight.sum() + self.bias


PROGRAMS = [
    Program("adapter", Adapter, lambda: [(r(2, 3, grad=True),)], train=True),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_behaves_as_eager(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        check(program)
