"""Gradients that are infinite or nan where they come in: they reach the elements that they reach in
eager, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic

CHOSEN: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "amax": lambda x: x.amax(),
    "max of rows": lambda x: x.view(3, 2).max(0)[0].sum(),
    "amin of rows": lambda x: x.view(3, 2).amin(1).sum(),
    "topk": lambda x: x.topk(2)[0].sum(),
    "kthvalue": lambda x: x.kthvalue(2)[0],
    "cummax": lambda x: x.cummax(0)[0].sum(),
    "maximum": lambda x: torch.maximum(x, x.detach() * 0 + 1).sum(),
    "scaled by its maximum": lambda x: (x / x.abs().max()).sum(),
    "norm": lambda x: x.norm(p=math.inf),
    "clamp": lambda x: x.clamp(-1, 1).sum(),
    "relu": lambda x: x.relu().sum(),
    "masked": lambda x: x.masked_fill(x > 0, 0.0).sum(),
}
NUMBERS = {
    "plain": [1.0, 2.0, 3.0, -1.0, 0.5, 0.0],
    "ties": [1.0, 3.0, 3.0, 3.0, -2.0, 1.0],
    "nan": [1.0, math.nan, 3.0, math.nan, 0.5, 2.0],
    "inf": [-math.inf, 2.0, math.inf, math.inf, 0.5, 1.0],
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", CHOSEN)
def test_history_reach_equals_eagers(name: str, backend: str) -> None:
    run = jitmagic.jit(CHOSEN[name], backend=backend)
    for numbers in NUMBERS.values():
        for tangent in (1.0, 0.0, math.inf, -math.inf, math.nan):
            gradients = []
            for function in (run, CHOSEN[name]):
                x = torch.tensor(numbers, requires_grad=True)
                function(x).backward(torch.tensor(tangent))
                gradients.append(x.grad)
            torch.testing.assert_close(*gradients, equal_nan=True)
