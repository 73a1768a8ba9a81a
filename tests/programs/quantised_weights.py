"""Linear layers with quantised weights, as users write them: name -> (function of x, q and its
scales, shape of the scales for a weight of N x K).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PROGRAMS", "Quantised", "exact_run", "made_inputs"]


class Quantised(NamedTuple):
    """A program; `group`: elements of a row that share a scale (None: the row, 0: the tensor)."""

    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    group: int | None = None


def scaled_result(x, q, scale):
    return F.linear(x, q.to(x.dtype)) * scale


def scaled_weight(x, q, scale):
    return F.linear(x, (q * scale[:, None]).to(x.dtype))


def grouped(size: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def run(x, q, scale):
        parts = q.view(q.shape[0], -1, size).to(scale.dtype) * scale.unsqueeze(-1)
        return F.linear(x, parts.view_as(q).to(x.dtype))

    return run


def repeated_groups(x, q, scale):
    """The last group may be shorter."""
    size = 32
    wide = scale[:, :, None].expand(-1, -1, size).reshape(q.shape[0], -1)[:, : q.shape[1]]
    return F.linear(x, (q.to(scale.dtype) * wide).to(x.dtype))


def one_scale(x, q, scale):
    return F.linear(x, q.to(x.dtype) * scale)


def with_bias_and_activation(x, q, scale):
    return F.gelu(F.linear(x, q.to(x.dtype) * scale[:, None], scale)) + 1


def with_zero_points(x, q, scale):
    zero = scale.round().clamp(-8, 8)
    return F.linear(x, ((q.to(scale.dtype) - zero[:, None]) * scale[:, None]).to(x.dtype))


def torchao_int8(x, q, scale):
    """torchao's `_linear_fp_act_int8_weight_impl`."""
    y = torch.mm(x.reshape(-1, x.shape[-1]), q.t().to(x.dtype)) * scale.to(x.dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def packed(x, q, scale):
    return torch.ops.aten._weight_int8pack_mm(x.reshape(-1, x.shape[-1]), q, scale)


PROGRAMS = {
    "scaled result": Quantised(scaled_result),
    "scaled weight": Quantised(scaled_weight),
    "groups of 32": Quantised(grouped(32), 32),
    "groups of 128": Quantised(grouped(128), 128),
    "groups of 8": Quantised(grouped(8), 8),
    "repeated groups": Quantised(repeated_groups, 32),
    "one scale": Quantised(one_scale, 0),
    "bias and activation": Quantised(with_bias_and_activation),
    "zero points": Quantised(with_zero_points),
    "torchao": Quantised(torchao_int8),
    "packed": Quantised(packed),
}


def exact_run(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the program for operands in float64, which ATen's packed product refuses."""
    return scaled_result if name == "packed" else PROGRAMS[name].run


def made_inputs(
    program: Quantised,
    rows: tuple[int, ...],
    n: int,
    k: int,
    dtype: torch.dtype,
    narrow: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return activations of `rows` x K, a weight of N x K and its scales."""
    torch.manual_seed(0)
    x = torch.randn(*rows, k, dtype=dtype)
    q = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    if narrow is not torch.int8:
        q = (q / 16).to(narrow)
    shape = () if program.group == 0 else (n,)
    if program.group:
        shape = (n, -(-k // program.group))
    return x, q, ((torch.rand(shape) + 0.5) / 64).to(dtype)
