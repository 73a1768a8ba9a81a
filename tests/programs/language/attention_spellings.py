"""Attention in the spellings of programs: `FUSED` become one call, the functions after it stay.

Each takes a query, a key and a value of (2, 3, N, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INF, N, D = float("inf"), 20, 8
Function = Callable[..., Any]

# -- masks -----------------------------------------------------------------------------------------


def tril(q: Tensor) -> Tensor:
    n = q.shape[-2]
    return torch.ones(n, n, dtype=torch.bool).tril()


def positions(q: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    return i[:, None] >= i[None, :]


def infinite_triangle(q: Tensor) -> Tensor:
    n = q.shape[-2]
    return torch.triu(torch.full((n, n), -INF, dtype=q.dtype), diagonal=1)


def padding(q: Tensor, dead: bool = False) -> Tensor:
    """True is padding; with `dead`, that is all of one row of the batch."""
    mask = torch.arange(N) >= torch.tensor([N - 6, N])[:, None]
    mask[0] |= dead
    return mask[:, None, None, :]


def bias(*shape: int, dead: bool = False) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    made[..., 0, 3] = -INF
    if dead:
        made[..., 2, :] = -INF
        made[..., 4, :] = -1e9
    return made


# -- spellings -------------------------------------------------------------------------------------


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def divided(q, k, v):
    return F.softmax(torch.matmul(q, k.mT) / math.sqrt(q.shape[-1]), dim=-1).matmul(v)


def query_scaled(q, k, v):
    return ((q * D**-0.5) @ k.permute(0, 1, 3, 2)).softmax(3) @ v


def both_scaled(q, k, v):
    return ((q / D**0.25) @ (k * D**-0.25).swapaxes(-1, -2) * 0.5).softmax(-1) @ v


def causal_filled(q, k, v):
    scores = (q @ k.mT * 0.3).masked_fill(~tril(q), -INF)
    return scores.softmax(-1) @ v


def causal_by_zero(q, k, v):
    n = q.shape[-2]
    mask = torch.tril(torch.ones(n, n)).view(1, 1, n, n)
    return F.softmax((q @ k.mT).masked_fill(mask[:, :, :n, :n] == 0, -1e9), dim=-1) @ v


def causal_where(q, k, v):
    return torch.where(positions(q), q @ k.mT / 3, -INF).softmax(-1) @ v


def causal_where_tensor(q, k, v):
    low = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype)
    return torch.where(tril(q), q @ k.mT / 3, low).softmax(-1) @ v


def causal_added(q, k, v):
    return (q @ k.mT + infinite_triangle(q)).softmax(-1) @ v


def causal_in_place(q, k, v):
    scores = q @ k.transpose(-1, -2)
    scores *= 0.25
    scores.masked_fill_(torch.triu(torch.ones_like(scores, dtype=torch.bool), 1), -INF)
    return scores.softmax(-1) @ v


def window(q, k, v):
    keep = tril(q) & torch.ones(N, N, dtype=torch.bool).triu(-4)
    return (q @ k.mT).masked_fill(~keep, -INF).softmax(-1) @ v


def padded(q, k, v):
    return (q @ k.mT * 0.3).masked_fill(padding(q), -INF).softmax(-1) @ v


def einsum(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.3
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def einsum_with_dots(q, k, v):
    weights = torch.einsum("... i d, ... j d -> ... i j", q, k).softmax(-1)
    return torch.einsum("...ij,...jd->...id", weights, v)


def value_first(q, k, v):
    q, k, v = (x.flatten(0, 1).mT for x in (q, k, v))
    weights = F.softmax(torch.bmm(q.permute(0, 2, 1), k) * 0.3, dim=2)
    return torch.bmm(v, weights.permute(0, 2, 1))


def three_dimensions(q, k, v):
    q, k, v = (x.reshape(-1, x.shape[-2], x.shape[-1]) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).div(3.0).softmax(-1), v)


def masked_in_four_dimensions(q, k, v):
    b, h, n, d = q.shape
    q, k, v = (x.reshape(b * h, n, d) for x in (q, k, v))
    scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), q, k.mT, beta=1.0, alpha=0.3)
    scores = scores.view(b, h, n, n).masked_fill(padding(q), -INF).softmax(-1)
    return torch.bmm(scores.view(b * h, n, n), v).view(b, h, n, d)


def grouped(q, k, v):
    k, v = (x[:, :1].repeat_interleave(q.shape[1], dim=1) for x in (k, v))
    return (q @ k.mT).softmax(-1) @ v


def expanded(q, k, v):
    k, v = k[:, :1], v[:, :1].expand(-1, q.shape[1], -1, -1)
    return (q @ k.mT).softmax(-1) @ v


def softmax_in_float(q, k, v):
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    scores = q @ k.transpose(2, 3) * 0.3
    weights = F.softmax(scores, dim=-1, dtype=wide).to(q.dtype)
    return F.dropout(weights, p=0.0, training=True) @ v


def alibi(q, k, v):
    i = torch.arange(q.shape[-2])
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=q.dtype)[:, None, None]
    scores = q @ k.mT + slopes * (i[None, :] - i[:, None]).clamp(max=0)
    return scores.masked_fill(i[None, :] > i[:, None], -INF).softmax(-1) @ v


def temperature(q, k, v):
    scale = torch.linspace(1, 2, q.shape[1], dtype=q.dtype)[:, None, None] * q.mean()
    return (q @ k.mT * scale).softmax(-1) @ v


def two_layers(q, k, v):
    return causal_filled(plain(q, k, v), k, v)


FUSED = [
    plain, divided, query_scaled, both_scaled, causal_filled, causal_by_zero, causal_where,
    causal_where_tensor, causal_added, causal_in_place, window, padded, einsum, einsum_with_dots,
    value_first, three_dimensions, masked_in_four_dimensions, grouped, expanded, softmax_in_float,
    alibi, temperature, two_layers,
]  # fmt: skip

# -- what stays -----------------------------------------------------------------------------------


def weights_returned(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return torch.cat([weights @ v, weights], -1)


def scores_read(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.amax()


def hooked(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    weights.register_hook(lambda grad: grad * 2)
    return weights @ v


def dropped(q, k, v):
    return F.dropout((q @ k.mT).softmax(-1), 0.3) @ v


def other_dimension(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def softcapped(q, k, v):
    return ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v


def weights_normalised(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return (weights / weights.sum(-2, keepdim=True)) @ v


def small_fill(q, k, v):
    return (q @ k.mT).masked_fill(~tril(q), -10.0).softmax(-1) @ v


def different_fills(q, k, v):
    scores = (q @ k.mT).masked_fill(padding(q, dead=True), -1e9)
    return scores.masked_fill(padding(q), -INF).softmax(-1) @ v


def query_written(q, k, v):
    q = q * 1
    weights = (q @ k.mT).softmax(-1)
    q.mul_(2)
    return weights @ v + q


def part_written(q, k, v):
    scores = q @ k.mT
    scores[..., 0] = 1.0
    return scores.softmax(-1) @ v


def in_float64(q, k, v):
    return (q @ k.mT).double().softmax(-1).to(v.dtype) @ v
