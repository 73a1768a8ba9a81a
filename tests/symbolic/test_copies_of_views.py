"""`split_copy`, `unsafe_split` and their like: one variant for all sizes, where torch's own meta
functions want ints; two for a diagonal, which is as long as the shorter side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "unsafe_split": lambda x: torch.unsafe_split(x, 3, 1),
    "unsafe_split_with_sizes": lambda x: torch.unsafe_split_with_sizes(x, [2, 4], -1),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1),
    "split_copy": lambda x: torch.split_copy(x.t(), 4),
    "split_with_sizes_copy": lambda x: torch.split_with_sizes_copy(x, [1, 5], 1),
    "unbind_copy": lambda x: torch.unbind_copy(x, 1),
    "diagonal_copy": lambda x: torch.diagonal_copy(x, -1),
    "slice_copy": lambda x: torch.slice_copy(x, 0, 1),
    "unfold_copy": lambda x: torch.unfold_copy(x, 1, 3, 1),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_vary(name: str, backend: str, train: bool) -> None:
    plain = PROGRAMS[name]
    made = jitmagic.jit(plain, dynamic=True, backend=backend, options={"keep": "compiled"})
    for n in (5, 8, 9, 12, 16):
        start = torch.randn(n, 6, dtype=torch.float64)
        answers = []
        for fn in (made, plain):
            x = start.clone().requires_grad_(train)
            result = fn(x * 1)
            parts = (result,) if isinstance(result, torch.Tensor) else tuple(result)
            grads = torch.autograd.grad(sum(p.square().sum() for p in parts), x) if train else ()
            answers.append([*(part.detach() for part in parts), *grads])
        for found, wanted in zip(*answers, strict=True):
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
    records = [r for r in handle_of(made).journal.records if r.result("trace") is not None]
    assert len(records) <= 1 + (name == "diagonal_copy")
