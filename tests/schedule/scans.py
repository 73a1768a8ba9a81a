"""Functions with scans, like those of programs.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .programs import Program

__all__ = ["SCANS"]

f32, f64, bf16, i64 = torch.float32, torch.float64, torch.bfloat16, torch.int64
ROWS, COLUMNS = ((6, 50), f32), ((50, 6), f32)


def share_below(x):
    """Sampling from the most likely: how much of the softmax comes before each element."""
    below = torch.softmax(x, -1).cumsum(-1)
    return below, below <= 0.9, below.amax(-1)


def scaled(x):
    total = x.exp().cumsum(0)
    return total / total[-1:]


def gradient_of_cumsum(g, x):
    return (g * x.cos()).flip(-1).cumsum(-1).flip(-1) * 2


def shifted(x):
    total = x.cumsum(1)
    return total[:, 1:] - total[:, :-1]


def of_every_kind(x, n):
    logs = torch.logcumsumexp(x, 1)
    return x.cumsum(1), x.tanh().cumprod(1), logs, *x.cummax(1), *n.cummin(1), n.cumprod(1)


SCANS: dict[str, Program] = {
    "share_below": Program(share_below, (ROWS,), 1),
    "scaled": Program(scaled, (COLUMNS,), 2),
    "gradient_of_cumsum": Program(gradient_of_cumsum, (ROWS, ROWS), 1),
    "backwards_in_columns": Program(lambda x: x.flip(0).cumsum(0).flip(0), (COLUMNS,), 1),
    "shifted": Program(shifted, (ROWS,), 2),
    "of_every_kind": Program(of_every_kind, (((4, 19), f32), ((4, 19), i64, 9)), 2),
    "twice": Program(lambda x: x.cumsum(1).cumsum(1).sum(1), (ROWS,), 1),
    "both_ways": Program(lambda x: x.cumsum(1).cumsum(0), (ROWS,), 2),
    "middle": Program(lambda x: x.cumsum(1) * 2, (((3, 17, 4), f32),), 1),
    "of_one_row": Program(lambda x: x.cumsum(0) + 1, (((70,), f32),), 1),
    "of_positions": Program(lambda x: torch.ones_like(x).cumsum(0) * x, (COLUMNS,), 1),
    "halves": Program(lambda x: x.cumsum(1) * 2, (((6, 50), bf16),), 1),
    "doubles": Program(lambda x: x.cumsum(0) * 2, (((50, 6), f64),), 1),
    "in_place": Program(lambda x: x.copy_(x.cumsum(1)), (ROWS,), 2),
    "reversed_in_place": Program(lambda x: x.copy_(x.cumsum(1).flip(1)), (ROWS,), 2),
    "of_views": Program(lambda x: x.t().reshape(10, 30).cumsum(1), (ROWS,), 1),
    "padded": Program(lambda x: F.pad(x.cumsum(1), (1, 2)), (ROWS,), 2),
    "outer_product": Program(lambda x: x.cumsum(1)[:, :, None] * x[:, None], (((3, 9), f32),), 2),
}
