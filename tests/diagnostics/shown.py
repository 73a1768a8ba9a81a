"""One of each kind of output, of a function with a loop, a graph break and three variants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import jitmagic

__all__ = ["NAMES", "shown_outputs"]

NAMES = ["explain", "now", "status", "passport", "why", "test", "lower", "picture"]


def step(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(2):
        x = torch.relu(x * y + 2)
    jitmagic.graph_break()
    return x.sum(-1)


def shown_outputs() -> dict[str, Any]:
    """By their NAMES."""
    tagged, x = jitmagic.jit(step), torch.ones(8, 64)
    for each in (x, x.double(), x[:3]):
        tagged(each, each)
    return {
        "explain": jitmagic.explain(tagged)(x, x),
        "now": jitmagic.explain(tagged),
        "status": jitmagic.status(tagged),
        "passport": jitmagic.passport(tagged)(x, x),
        "why": jitmagic.why(tagged)(x, 3),
        "test": jitmagic.test(tagged)(x, x, n=4),
        "lower": jitmagic.lower(lambda x: x + 1)(x),
        "picture": jitmagic.explain(tagged).now.picture("graph"),
    }
