"""A pass that replaces attention written out by hand with F.scaled_dot_product_attention.

    python demos/extend_pass.py

The model stays as it is. The pass edits the captured graph, which has torch's functions and
methods, so gradients are those of the fused attention.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import jitmagic
from jitmagic import extend


class Attention(nn.Module):
    """Multi-head attention with its softmax written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        mixed = torch.softmax(scores, -1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Parts(NamedTuple):
    """The values of `softmax(query @ key.transpose(-2, -1) / divisor, -1) @ value`."""

    query: Node
    key: Node
    value: Node
    divisor: float


def match(softmax: Node) -> Parts | None:
    """Return the parts of attention around a softmax; None if it is something else."""
    scaled, (user, *others) = softmax.args[0], softmax.users
    if others or user.target is not operator.matmul or user.args[0] is not softmax:
        return None
    if softmax.args[1:] != (-1,) or scaled.target is not operator.truediv:
        return None
    scores, divisor = scaled.args
    if scores.target is not operator.matmul or not isinstance(divisor, float):
        return None
    query, transposed = scores.args
    if transposed.target != "transpose" or transposed.args[1:] != (-2, -1):
        return None
    return Parts(query, transposed.args[0], user.args[1], divisor)


@extend.register_pass("captured")
def fuse_attention(gm: GraphModule, context: extend.PassContext) -> None:
    """Replace attention that is written out; dead nodes are erased after the pass."""
    for softmax in gm.graph.find_nodes(op="call_function", target=torch.softmax):
        if (found := match(softmax)) is None:
            continue
        (product,) = softmax.users
        with gm.graph.inserting_after(product):
            fused = gm.graph.call_function(
                F.scaled_dot_product_attention,
                (found.query, found.key, found.value),
                {"scale": 1 / found.divisor},
            )
        product.replace_all_uses_with(fused)


def main() -> None:
    torch.manual_seed(0)
    model, x = Attention(64, 4), torch.randn(8, 32, 64)
    fast = jitmagic.jit(Attention(64, 4))
    fast.load_state_dict(model.state_dict())
    losses = []
    for each in (model, fast):
        loss = each(x).square().mean()
        loss.backward()
        losses.append(loss.item())
    apart = max(
        (one.grad - other.grad).abs().max().item()
        for one, other in zip(model.parameters(), fast.parameters(), strict=True)
    )
    print(f"loss {losses[0]:.6f} in eager, {losses[1]:.6f} with the pass")
    print(f"largest difference of a gradient: {apart:.1e}")
    captured = jitmagic.graphs(fast)(x).captured
    print(f"attention is fused: {'scaled_dot_product_attention' in captured.code}")


if __name__ == "__main__":
    main()
