"""What a type checker sees of tagged code: checked by `make lint`, never run."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import jitmagic


@jitmagic.jit
def scaled(x: Tensor, k: int = 2) -> Tensor:
    return x * k


@jitmagic.jit(mode="reduce-overhead", fullgraph=True)
def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x + y, x - y


class Net(nn.Module):
    def extra(self, x: Tensor) -> int:
        return x.dim()


x = torch.ones(2)
assert_type(scaled(x, k=3), Tensor)
assert_type(both(x, x), tuple[Tensor, Tensor])
net = jitmagic.jit(Net(), dynamic={"x": {0: (2, 64)}})
assert_type(net, Net)
assert_type(net.extra(x), int)
assert_type(jitmagic.is_compiling(), bool)
assert_type(jitmagic.disable(scaled)(x), Tensor)
scaled(x, "2")  # type: ignore[arg-type]
scaled()  # type: ignore[call-arg]
