"""einops: functions inside a function, and layers inside a model that trains."""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

from .case import Tag, case
from .training import train


@case("einops", "functions")
def functions(tag: Tag) -> Any:
    @tag
    def patches(x: torch.Tensor) -> Any:
        tokens = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        scores = einsum(tokens, tokens, "b i d, b j d -> b i j")
        packed, shapes = pack([tokens, tokens[:, 0]], "b * d")
        means = reduce(tokens, "b (n m) d -> b n d", "mean", m=2)
        return means, repeat(scores, "b i j -> b h i j", h=2), unpack(packed, shapes, "b * d")

    return [patches(torch.randn(size, 3, 16, 16)) for size in (2, 2, 3)]


@case("einops", "layers, trained")
def layers(tag: Tag) -> Any:
    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
        EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=48, d=32),
        nn.GELU(),
        Reduce("b t d -> b d", "mean"),
        nn.Linear(32, 5),
    )
    return train(tag(model), [torch.randn(4, 3, 16, 16) for _ in range(3)])
