"""Results of torch whose items have names, met behind a graph break or as arguments."""

from __future__ import annotations

import torch

import jitmagic


def test_structures_from_outside_have_their_fields() -> None:
    """What torch gives to plain Python, and comes back behind a graph break or as an argument."""

    def largest(found: torch.return_types.max, x: torch.Tensor) -> torch.Tensor:
        values, indices = found
        return x[indices] + found.values * len(found) + found[0] + values

    tagged = jitmagic.jit(largest, backend="eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(4)
        torch.testing.assert_close(tagged(x.max(0), x), largest(x.max(0), x))
    assert tagged(torch.max(x, 0), x).shape == ()
