"""Slices at data-dependent positions are written in one graph: random erasing, CutMix, a crop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic


def erased(x: Tensor, i: int, j: int) -> Any:
    y = x.clone()
    y[..., i : i + 4, j : j + 2] = 0
    return y


def pasted(x: Tensor, i: int, j: int) -> Any:
    y = x * 1
    y[:, i : i + 3, :j] = x.flip(0)[:, i : i + 3, :j]
    return y.sum(-1)


def noisy(x: Tensor, i: int, j: int) -> Any:
    """Its end is beyond the last row for some."""
    y = x.clone()
    y[:, i:j] = torch.arange(5.0)
    y[:, i : 3 * i] = -1
    return y * 2


def cropped(x: Tensor, i: int, j: int) -> Any:
    return x[:, i : i + 3, j:].exp().sum((1, 2)) + x[0, j : i + j].mean()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [erased, pasted, noisy, cropped], ids=lambda one: one.__name__)
def test_one_graph_for_all_box_positions(program: Callable[..., Any], backend: str) -> None:
    def drawn(x: Tensor, place: Tensor) -> Any:
        return program(x, *place.tolist())

    compiled = jitmagic.jit(drawn, backend=backend, fullgraph=True)
    for place in ((1, 2), (0, 0), (6, 0), (9, 9), (5, 5), (3, 1)):
        given = torch.randn(2, 8, 5), torch.tensor(place)
        torch.testing.assert_close(compiled(*given), drawn(*given), equal_nan=True)
