"""Views of torch.ops.prims, which have no variants that copy, are compiled as ATen's views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic

prims = torch.ops.prims
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "broadcast_in_dim": lambda x: prims.broadcast_in_dim(x, (2, 3, 4), (1, 2)),
    "transpose": lambda x: prims.transpose(x, (1, 0)),
    "squeeze": lambda x: prims.squeeze(x[None], (0,)),
    "collapse_view": lambda x: prims.collapse_view(x, 0, 1),
    "split_dim": lambda x: prims.split_dim(x, 1, 2),
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_primitive_shares_memory_and_is_compiled(name: str) -> None:
    def run(x: Tensor) -> Tensor:
        base = x * 2
        seen = VIEWS[name](base)
        base.add_(1)
        return seen * 3

    x = torch.arange(12.0).reshape(3, 4)
    with_all = jitmagic.jit(run, fullgraph=True, options={"on_error": "raise"})
    torch.testing.assert_close(with_all(x), run(x), rtol=0, atol=0)
