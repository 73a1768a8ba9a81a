"""Programs that run in eager and inside `jitmagic.lazy()`: each returns what it computed.

A program takes a dtype, so that float64 tells which of two float32 results is nearer the truth. It
makes its inputs itself, from a seeded generator.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = Callable[[torch.dtype], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return values.to(torch.get_default_device(), dtype)


# ------------------------------------------------------------------------------------------ values


@program
def pointwise_chain(dtype: torch.dtype) -> Any:
    x = randn(64, 32, dtype=dtype)
    return ((x * 2 + 1).relu() - 0.5).tanh() / 3


@program
def reductions(dtype: torch.dtype) -> Any:
    x = randn(16, 33, dtype=dtype)
    y = x.exp()
    return y.sum(), y.mean(0), y.amax(1), y.var(1), x.argmax(1), (x > 0).any(0)


@program
def products(dtype: torch.dtype) -> Any:
    x, w = randn(8, 16, dtype=dtype), randn(4, 16, dtype=dtype, seed=1)
    return F.linear(x, w).relu() @ w, torch.einsum("ij,kj->ik", x, w), (x.T @ x).trace()


@program
def softmax_attention(dtype: torch.dtype) -> Any:
    q, k, v = (randn(2, 3, 8, 4, dtype=dtype, seed=i) for i in range(3))
    by_hand = (q @ k.transpose(-2, -1) / 2.0).softmax(-1) @ v
    return by_hand, F.scaled_dot_product_attention(q, k, v)


@program
def convolution(dtype: torch.dtype) -> Any:
    x, w = randn(2, 3, 8, 8, dtype=dtype), randn(4, 3, 3, 3, dtype=dtype, seed=1)
    return F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2).mean((2, 3))


@program
def normalisations(dtype: torch.dtype) -> Any:
    x = randn(4, 6, 5, dtype=dtype)
    return F.layer_norm(x, (5,)), F.group_norm(x, 3), F.batch_norm(x, None, None, training=True)


@program
def mixed_dtypes(dtype: torch.dtype) -> Any:
    x, n = randn(5, dtype=dtype), torch.arange(5)
    return x + n, n / 2, n // 2, x > n, (x > 0) & (n > 1), n.to(torch.int8) * 3, x.half() + 1


@program
def lists_of_tensors(dtype: torch.dtype) -> Any:
    x = randn(6, 4, dtype=dtype)
    a, b = x.relu().split([2, 4])
    c = torch.cat([a, b * 2, x[:1]])
    return c, torch.stack([c, c + 1]), (c * 2).unbind(1), torch.where(c > 0, c, -c)


@program
def factories(dtype: torch.dtype) -> Any:
    x = randn(3, 4, dtype=dtype)
    zeros, ones = torch.zeros(3, 4, dtype=dtype), torch.ones_like(x * 2)
    return (
        zeros + x,
        ones * x,
        torch.arange(4) + x,
        torch.full((2,), 1.5) * 2,
        torch.eye(3, dtype=dtype) @ zeros,
    )


@program
def indexing(dtype: torch.dtype) -> Any:
    x, rows = randn(6, 4, dtype=dtype), torch.tensor([0, 2, 2])
    y = x * 2
    return y[rows], y[rows, 1], y[1:4, ::2], y[None, ..., -1], y.gather(0, rows[:, None]), y[y > 0]


@program
def embedding(dtype: torch.dtype) -> Any:
    table, words = randn(10, 4, dtype=dtype), torch.tensor([[1, 2], [3, 1]])
    return F.embedding(words, table).sum(1), F.one_hot(words, 10).sum()


@program
def sorting(dtype: torch.dtype) -> Any:
    x = randn(4, 7, dtype=dtype).sin()
    values, order = x.sort(1)
    return values, order, x.topk(3), x.cumsum(1), x.median(1).values, torch.unique((x * 2).round())


@program
def complex_numbers(dtype: torch.dtype) -> Any:
    x = randn(8, dtype=dtype) * 2
    z = torch.complex(x, x + 1)
    return (z * z.conj()).real, torch.fft.fft(x).abs() + 1


@program
def empty_and_scalar_tensors(dtype: torch.dtype) -> Any:
    x = randn(0, 3, dtype=dtype) + 1
    s = torch.tensor(2.0, dtype=dtype) * 3
    return x.sum(0), x.shape, s + 1, torch.cat([x, x * 2])


# -------------------------------------------------------------------------------- writes and views


@program
def in_place_on_pending(dtype: torch.dtype) -> Any:
    y = randn(4, 4, dtype=dtype) * 2
    z = y + 1
    y.add_(1).mul_(3)
    y += z
    y.clamp_(min=0)
    return y, z


@program
def write_through_view(dtype: torch.dtype) -> Any:
    y = randn(4, 6, dtype=dtype) * 2
    row, columns = y[1], y.t()[2:4]
    row.zero_()
    columns.add_(10)
    y[0, 0] = 7
    return y, row, columns, y.sum()


@program
def views_of_views(dtype: torch.dtype) -> Any:
    y = randn(2, 3, 4, dtype=dtype).exp()
    v = y.view(6, 4)[::2].transpose(0, 1)
    w = v.unsqueeze(0).expand(2, 4, 3)
    y.neg_()
    return v, w.sum(0), v.is_contiguous(), v.storage_offset(), w.stride()


@program
def write_to_input(dtype: torch.dtype) -> Any:
    x = randn(5, dtype=dtype)
    before = x + 1
    x.mul_(2)
    after = x + 1
    x[1:3] = before[1:3]
    return before, after, x


@program
def alias_of_input(dtype: torch.dtype) -> Any:
    x = randn(3, 4, dtype=dtype)
    v = x.t()
    y = v * 2
    x.zero_()
    return y, v + 1, v.data_ptr() == x.data_ptr()


@program
def out_argument(dtype: torch.dtype) -> Any:
    x, buffer = randn(4, dtype=dtype), torch.empty(4, dtype=dtype)
    y = x * 2
    torch.add(y, 1, out=buffer)
    z = buffer + y
    torch.mul(x, 3, out=buffer)
    return buffer, z


@program
def data_attribute(dtype: torch.dtype) -> Any:
    values = randn(4, dtype=dtype)
    values.untyped_storage()
    outside = nn.Parameter(values)  # its memory exists
    outside.data = outside.data - 0.5
    outside.data.mul_(2)
    weight = nn.Parameter(randn(4, dtype=dtype))
    y = weight * 2
    weight.data = weight.data - 0.5
    weight.data.mul_(2)
    return outside, y, weight, weight + 1, (y.data * 2).numpy().tolist()


@program
def detach_shares_memory(dtype: torch.dtype) -> Any:
    y = randn(4, dtype=dtype).requires_grad_() * 1
    d = y.detach()
    d.add_(1)
    return y, d, d.requires_grad


@program
def metadata_only(dtype: torch.dtype) -> Any:
    y = (randn(3, 4, dtype=dtype) * 2).t()
    return y.shape, y.stride(), y.dtype, str(y.device), y.numel(), y.is_contiguous(), len(y), y.ndim


@program
def resized_in_place(dtype: torch.dtype) -> Any:
    y = randn(3, 4, dtype=dtype) * 2
    z = y.t_()
    y.unsqueeze_(0)
    return y, z.shape, y.squeeze_(), y.resize_(2, 2)


# ------------------------------------------------------------------------- values that are needed


@program
def control_flow(dtype: torch.dtype) -> Any:
    x, steps = randn(8, dtype=dtype), 0
    while x.norm() > 0.1 and steps < 20:
        x = x * 0.7 if x.sum() > 0 else x * 0.6 + 0.01
        steps += 1
    return x, steps


@program
def scalars(dtype: torch.dtype) -> Any:
    y = randn(4, dtype=dtype) * 2
    small = float(y.min()) < 0
    return (
        round(y.sum().item(), 3),
        small,
        int(y.argmax()),
        y.tolist()[0] == y[0].item(),
        bool(y.any()),
    )


@program
def printing(dtype: torch.dtype) -> Any:
    y = (randn(3, dtype=dtype) * 4).round()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print(y.int(), f"{y[0]:.1f}", str(y.sum().int()))
    return out.getvalue()


@program
def to_numpy(dtype: torch.dtype) -> Any:
    y = randn(3, 4, dtype=dtype) * 2
    array = y.numpy()
    array += 1  # the tensor and the array share memory
    z = y * 2
    array += 1
    return z, y, np.asarray(y + 1).sum()


@program
def from_numpy(dtype: torch.dtype) -> Any:
    array = np.arange(6, dtype=np.float64)
    x = torch.from_numpy(array)
    y = x * 2
    array[:] = 0
    return y, x + 1


@program
def copies(dtype: torch.dtype) -> Any:
    y = randn(4, dtype=dtype) * 2
    twin, other = copy.deepcopy(y), pickle.loads(pickle.dumps(y))
    y.zero_()
    return twin, other, y, y.clone() + 1


@program
def storages(dtype: torch.dtype) -> Any:
    y = randn(4, 4, dtype=dtype) * 2
    return y.untyped_storage().nbytes(), y[1:].untyped_storage().data_ptr() == y.data_ptr()
