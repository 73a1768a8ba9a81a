"""Functions whose graphs the tests of schedule and codegen run: name -> (function, inputs, nests).

`nests` is the number of kernels that the CPU schedule makes: a fusion gained or lost changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

__all__ = ["PROGRAMS", "Program", "made_inputs"]

aten = torch.ops.aten
f32, f64, bf16, f16, i64, b8 = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.bool,
)


class Program(NamedTuple):
    """A program; `shapes`: one (shape, dtype) per input, or a function of the generator."""

    fn: Callable
    inputs: tuple
    nests: int


def made_inputs(program: Program, seed: int = 0) -> list[torch.Tensor]:
    """Return fresh inputs; integer tensors are indexes below the number in the third field."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for shape, dtype, *limit in program.inputs:
        if dtype is b8:
            made.append(torch.rand(shape, generator=g) < 0.5)
        elif dtype in (i64, torch.int32):
            made.append(torch.randint(0, limit[0] if limit else 100, shape, generator=g).to(dtype))
        else:
            made.append(torch.randn(shape, generator=g).to(dtype))
    return made


def chain(x, y):
    return F.gelu(x.sin() * y.cos() + (-x * x).exp()) * y + x


def relu_sum(x, y):
    return (x * y + 2).relu().sum(-1)


def softmax_parts(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt() * w + b


def layer_norm_saved(x, w, b):
    mean = x.mean(-1, keepdim=True)
    rstd = (((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return (x - mean) * rstd * w + b, mean, rstd


def shifted_rows(x, y):
    """Rows that are stored too, and read at their first element (autograd/decompose/moments.py)."""
    h = x + y
    first = h[:, :1]
    centred = h - (first + (h - first).mean(1, True))
    return h, centred * (centred * centred).mean(1, True).rsqrt()


def shifted_groups(x, y):
    h = (x * y).view(4, 2, 12)
    first = h[:, :, :1]
    mean = first + (h - first).mean(2, True)
    return h, ((h - mean) ** 2).sum(2), mean


def first_groups(x, w):
    """Channels normalized in groups, of which half are read again: fewer rows than are computed."""
    h = x.view(2, 8, -1)
    h = ((h - h.mean(2, True)) * (h * h).mean(2, True).rsqrt()).view(x.shape) * w
    return h, h[:, :16].exp()


def starts_of_elements(x, y):
    """Pointwise: the first element of a row would be recomputed for each of its elements."""
    h = (x * y).exp()
    return h, h * 2 - h[:, :1]


def layer_norm_backward(dy, x, w, mean, rstd):
    hat = (x - mean) * rstd
    g = dy * w
    dx = (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True)) * rstd
    return dx, (dy * hat).sum(0), dy.sum(0)


def batch_norm(x, w, b):
    mean = x.mean((0, 2, 3), keepdim=True)
    var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return ((x - mean) * (var + 1e-5).rsqrt() * w + b).relu()


def softmax_columns(x):
    e = (x - x.amax(0, keepdim=True)).exp()
    return e / e.sum(0, keepdim=True)


def everything_sum(x):
    return (x * x).sum(), x.amax()


def cross_entropy(x, target):
    m = x.amax(-1, keepdim=True)
    logsum = (x - m).exp().sum(-1, keepdim=True).log() + m
    return (logsum - x.gather(1, target.unsqueeze(1))).mean()


def bias_gelu_linear(x, w, b):
    return F.gelu(aten.mm(x, w) + b)


def mlp(x, w1, b1, w2, b2):
    h = torch.addmm(b1, x, w1.t()).relu()
    return torch.addmm(b2, h, w2.t()), h > 0


def mlp_inference(x, w1, b1, w2, b2, w3, b3):
    h = torch.addmm(b1, x, w1.t()).relu()
    h = torch.addmm(b2, h, w2.t()).relu()
    return torch.addmm(b3, h, w3.t())


def chain_of_columns(x, w1, s, w2, y):
    """Other layouts and arithmetic: columns of x are contiguous, a residual after the last."""
    h = F.gelu(torch.mm(x.t(), w1) * s)
    return torch.mm(h, w2) + y


def chain_scaled_by_row(x, w1, r, w2):
    return torch.mm(torch.mm(x, w1) * r, w2)


def chain_with_readers(x, w1, w2, w3):
    h = torch.mm(x, w1)
    return torch.mm(h, w2).relu(), torch.mm(h, w3)


def chain_kept(x, w1, w2):
    h = torch.mm(x, w1).relu()
    return torch.mm(h, w2), h


def chain_of_gaps(x, w1, w2):
    h = torch.mm(x[:, ::2], w1[:, 1:])
    return torch.mm(h, w2).relu()


def chain_into_right(x, w1, y):
    return torch.mm(y, torch.mm(x, w1)).relu()


def chain_with_residual(x, w1, w2):
    h = torch.mm(x, w1)
    return torch.mm(h, w2) + h


def chain_turned(x, w1, w2):
    return torch.mm(torch.mm(x, w1).t(), w2).relu()


def mlp_backward(dy, h, w2, x):
    dh = torch.mm(dy, w2) * (h > 0)
    return torch.mm(dy.t(), h), dy.sum(0), torch.mm(dh.t(), x), dh.sum(0)


def linear_softmax(x, w, b):
    return torch.softmax(torch.addmm(b, x, w.t()), -1)


def product_of_products(x, y):
    p = torch.mm(x.sin(), y)
    return torch.mm(p, y).t().tanh(), p.reshape(2, 8, 16) + 1


def transposed_add(x, y):
    return x + y.t()


def two_layouts(x, y):
    z = x + y.t()
    return z * 2, (z + 1).t().contiguous()


def column_sum(x, y):
    return (x * y).sum(0)


def saved_relu(x, y):
    z = x * y
    return z.relu(), z > 0


def half_chain(x, y):
    return (x * y + 1).sigmoid() * x


def embedding(table, index):
    return aten.embedding(table, index) * 2


def arg_reductions(x):
    return x.argmax(-1), x.argmin(0), (x * x).argmax()


def masked(x, m):
    return torch.where(m, x, -x).sum(-1), (m & (x > 0)).any(-1), m.all(0)


def causal_softmax(x):
    n = x.shape[-1]
    keep = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    return torch.softmax(torch.where(keep, x, float("-inf")), -1)


def concatenated(x, y):
    return torch.cat([x.relu(), y * 2], 1) + 1


def padded(x):
    return aten.constant_pad_nd(x, [1, 2, 3, 0], 0.5) * 2


def padded_rows(x, index):
    """A row of run-time index, whose lanes are loaded under a mask."""
    return aten.slice.Tensor(aten.index.Tensor(aten.constant_pad_nd(x, [1, 2], 0.5), [index]), 1, 1)


def strided_slices(x):
    return x[:, ::2] * x[:, 1::2], x[1:] - x[:-1]


def reshaped(x, y):
    return (x.reshape(-1, 4) + y).reshape(x.shape).sum(-1)


def row_then_pieces(x):
    mean = x.reshape(-1, x.shape[-1]).mean(-1).reshape(x.shape[0], x.shape[1], 1)
    return x - mean


def momentum(p, m, g):
    m2 = m * 0.9 + g
    return p.copy_(p - m2 * 0.1), m.copy_(m2)


def running_stats(x, mean):
    batch = x.mean(0)
    y = x - batch
    mean.copy_(mean * 0.9 + batch * 0.1)
    return y


def integers(a, b):
    return (a * 3 + b) // 7, (a - b) % 5, a & b, (a < b).sum()


def doubles(x):
    return (x.exp() / (1 + x.exp())).sum(-1), x.tanh()


def mixed_types(x, k, m):
    return (x * k + m).to(torch.float64), (x.to(torch.int32) + k).to(torch.bfloat16)


def diamond(x):
    e = x.exp()
    return e.sum(-1), (e + 1).log().sum(0), e


def scalar_mean_scale(x):
    return x / x.sum()


def windows(x):
    return x.unfold(0, 4, 2).sum(-1)


SQUARE = ((64, 48), f32)


def steps_of_time(x, h, w):
    """Time steps that differ in their offset into x, which ends in the middle of a row, and into
    out.
    """
    out = torch.empty_like(x)
    for t in range(x.shape[0]):
        h = torch.tanh(torch.mm(h, w) + x[t].flip(-1)) + x[t, :, 4:5]
        out[t] = h
    return out, h


def steps_back_in_time(x, h, w):
    """Time steps from the last to the first; each also reads an earlier step if there is one."""
    for t in reversed(range(x.shape[0])):
        h = torch.mm(h, w).sigmoid() * x[t] + x[max(t - 1, 0)]
    return h


PROGRAMS = {
    "chain": Program(chain, (((33, 47), f32), ((33, 47), f32)), 1),
    "chain_large": Program(chain, (((300, 300), f32), ((300, 300), f32)), 1),
    "relu_sum": Program(relu_sum, (((8, 64), f32), ((8, 64), f32)), 1),
    "softmax_parts": Program(softmax_parts, (((37, 130), f32),), 1),
    "softmax_large": Program(softmax_parts, (((300, 1000), f32),), 1),
    "softmax_op": Program(lambda x: torch.softmax(x, -1), (((37, 130), f32),), 1),
    "layer_norm": Program(layer_norm, (((37, 100), f32), ((100,), f32), ((100,), f32)), 1),
    "layer_norm_saved": Program(
        layer_norm_saved, (((4, 9, 64), f32), ((64,), f32), ((64,), f32)), 1
    ),
    "shifted_rows": Program(shifted_rows, (((37, 130), f32), ((37, 130), f32)), 1),
    "shifted_groups": Program(shifted_groups, (((4, 2, 3, 4), f32), ((4, 2, 3, 4), f32)), 2),
    "first_groups": Program(first_groups, (((2, 32, 16, 16), f32), ((32, 1, 1), f32)), 2),
    "starts_of_elements": Program(starts_of_elements, (((37, 130), f32), ((130,), f32)), 2),
    "layer_norm_backward": Program(
        layer_norm_backward,
        (((50, 96), f32), ((50, 96), f32), ((96,), f32), ((50, 1), f32), ((50, 1), f32)),
        2,
    ),
    "batch_norm": Program(
        batch_norm, (((4, 6, 9, 10), f32), ((6, 1, 1), f32), ((6, 1, 1), f32)), 1
    ),
    "softmax_columns": Program(softmax_columns, (((70, 50), f32),), 1),
    "everything_sum": Program(everything_sum, (((61, 53), f32),), 1),
    "everything_sum_large": Program(everything_sum, (((700, 301), f32),), 1),
    "cross_entropy": Program(cross_entropy, (((20, 50), f32), ((20,), i64, 50)), 2),
    "bias_gelu_linear": Program(
        bias_gelu_linear, (((20, 30), f32), ((30, 40), f32), ((40,), f32)), 1
    ),
    "mlp": Program(
        mlp, (((32, 20), f32), ((30, 20), f32), ((30,), f32), ((10, 30), f32), ((10,), f32)), 2
    ),
    "mlp_inference": Program(
        mlp_inference,
        (
            ((32, 20), f32),
            ((30, 20), f32),
            ((30,), f32),
            ((30, 30), f32),
            ((30,), f32),
            ((10, 30), f32),
            ((10,), f32),
        ),
        1,
    ),
    "chain_of_columns": Program(
        chain_of_columns,
        (((24, 19), f32), ((24, 40), f32), ((40,), f32), ((40, 18), f32), ((19, 18), f32)),
        1,
    ),
    "chain_scaled_by_row": Program(
        chain_scaled_by_row,
        (((20, 12), f32), ((12, 24), f32), ((20, 1), f32), ((24, 20), f32)),
        2,
    ),
    "chain_with_readers": Program(
        chain_with_readers, (((20, 12), f32), ((12, 24), f32), ((24, 20), f32), ((24, 9), f32)), 3
    ),
    "chain_kept": Program(chain_kept, (((20, 12), f32), ((12, 24), f32), ((24, 20), f32)), 2),
    "chain_of_gaps": Program(chain_of_gaps, (((20, 24), f32), ((12, 25), f32), ((24, 20), f32)), 2),
    "product_of_gaps": Program(
        lambda x, y: torch.mm(x[:, ::2], y[::3, ::2].t()).relu(),
        (((20, 24), f32), ((30, 24), f32)),
        1,
    ),
    "chain_into_right": Program(
        chain_into_right, (((20, 12), f32), ((12, 24), f32), ((16, 20), f32)), 2
    ),
    "chain_with_residual": Program(
        chain_with_residual, (((20, 12), f32), ((12, 24), f32), ((24, 24), f32)), 2
    ),
    "chain_turned": Program(chain_turned, (((20, 12), f32), ((12, 24), f32), ((20, 9), f32)), 2),
    "mlp_backward": Program(
        mlp_backward, (((32, 10), f32), ((32, 30), f32), ((10, 30), f32), ((32, 20), f32)), 5
    ),
    "linear_softmax": Program(linear_softmax, (((9, 20), f32), ((30, 20), f32), ((30,), f32)), 2),
    "product_of_products": Program(product_of_products, (((16, 16), f32), ((16, 16), f32)), 5),
    "transposed_add": Program(transposed_add, (((70, 50), f32), ((50, 70), f32)), 1),
    "transposed_large": Program(transposed_add, (((500, 400), f32), ((400, 500), f32)), 1),
    "two_layouts": Program(two_layouts, (((70, 50), f32), ((50, 70), f32)), 1),
    "column_sum": Program(column_sum, (SQUARE, SQUARE), 1),
    "column_sum_large": Program(column_sum, (((900, 200), f32), ((900, 200), f32)), 1),
    "saved_relu": Program(saved_relu, (SQUARE, SQUARE), 1),
    "half_chain": Program(half_chain, (((9, 70), bf16), ((9, 70), bf16)), 1),
    "float16_chain": Program(half_chain, (((9, 70), f16), ((9, 70), f16)), 1),
    "embedding": Program(embedding, (((30, 24), f32), ((4, 7), i64, 30)), 1),
    "arg_reductions": Program(arg_reductions, (((23, 40), f32),), 3),
    "masked": Program(masked, (((23, 40), f32), ((23, 40), b8)), 2),
    "causal_softmax": Program(causal_softmax, (((3, 20, 20), f32),), 1),
    "concatenated": Program(concatenated, (((6, 20), f32), ((6, 13), f32)), 1),
    "padded": Program(padded, (((9, 21), f32),), 1),
    "padded_rows": Program(padded_rows, (((8, 17), f32), ((3,), i64, 8)), 1),
    "strided_slices": Program(strided_slices, (((20, 40), f32),), 2),
    "reshaped": Program(reshaped, (((6, 12), f32), ((4,), f32)), 1),
    "row_then_pieces": Program(row_then_pieces, (((3, 5, 33), f32),), 1),
    "momentum": Program(momentum, (((40, 30), f32), ((40, 30), f32), ((40, 30), f32)), 1),
    "running_stats": Program(running_stats, (((40, 30), f32), ((30,), f32)), 1),
    "integers": Program(integers, (((9, 30), i64), ((9, 30), i64)), 2),
    "doubles": Program(doubles, (((11, 30), f64),), 2),
    "mixed_types": Program(mixed_types, (((9, 21), f32), ((9, 21), torch.int32), ((21,), bf16)), 1),
    "diamond": Program(diamond, (((40, 50), f32),), 2),
    "scalar_mean_scale": Program(scalar_mean_scale, (((20, 30), f32),), 1),
    "scalar_scale_large": Program(scalar_mean_scale, (((400, 300), f32),), 2),
    "windows": Program(windows, (((40,), f32),), 1),
    "steps_of_time": Program(steps_of_time, (((5, 3, 8), f32), ((3, 8), f32), ((8, 8), f32)), 6),
    "steps_of_odd_rows": Program(
        steps_of_time, (((4, 3, 7), f32), ((3, 7), f32), ((7, 7), f32)), 5
    ),
    "steps_back_in_time": Program(
        steps_back_in_time, (((5, 3, 8), f32), ((3, 8), f32), ((8, 8), f32)), 5
    ),
}
