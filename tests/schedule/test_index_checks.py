"""Fusion does not lose the check of a run-time index; it still fuses if all elements are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.loops.ir import Nest

GOOD, BAD = torch.tensor([3, 0, 1, 2]), torch.tensor([0, 1, 2, 4])
CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "whole": (lambda x, i: x[i] * 2 + 1, 1),
    "transposed": (lambda x, i: x[i].t() * 2, 1),
    "rows": (lambda x, i: x[i].softmax(-1), 1),
    "part": (lambda x, i: x[i][:2] * 2, 2),
    "padded": (lambda x, i: torch.nn.functional.pad(x[i], (0, 0, 0, -1)) + 1, 2),
    "joined": (lambda x, i: torch.cat([x, x[i]])[:2] + 1, 2),
    "of a constant": (lambda x, i: torch.ones(4, 3)[i] + x, 2),
    "of a row": (lambda x, i: (x[0] * 2).expand(4, 3)[i] + x, 2),
    "twice": (lambda x, i: x[i][i[:2]], 2),
}


@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_range_raises(case: str) -> None:
    function, kernels = CASES[case]
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    compiled = jitmagic.jit(function)
    torch.testing.assert_close(compiled(x, GOOD), function(x, GOOD))
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        function(x, BAD)
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        compiled(x, BAD)
    handle = handle_of(compiled)
    assert handle is not None
    steps = handle.journal.records[-1].result("forward: schedule").program.steps
    assert sum(isinstance(step, Nest) for step in steps) == kernels
