"""Programs with user-written Triton kernels, each with the calls to make."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.programs.harness import Program

from . import kernels as k
from . import operators


def rows(*shape, grad=False, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


def add(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    k.add_kernel[(triton.cdiv(n, 32),)](x, y, out, n, BLOCK=32)
    return out


def between_pointwise(x, y):
    return torch.relu(add(x * 2, y.sin())) + 1


def softmax_rows(x):
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    k.softmax_kernel[(x.shape[0],)](
        out, x, x.stride(0), out.stride(0), x.shape[1], BLOCK=block, num_warps=4, num_stages=2
    )
    return out * 2


def written_argument(x):
    k.scale_kernel[(triton.cdiv(x.numel(), 32),)](x, x.numel(), 3.0, BLOCK=32)
    return x + 1


def written_argument_alone(x):
    k.scale_kernel[(triton.cdiv(x.numel(), 32),)](x, x.numel(), 3.0, BLOCK=32)


def old_value_read_later(x):
    y = x.exp()
    before = y + 1
    k.scale_kernel[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, y.numel(), 3.0, 32)
    return before, y - 1


def written_twice(x):
    y = x.exp()
    for factor in (2.0, 5.0):
        k.scale_kernel[(triton.cdiv(y.numel(), 32),)](y, y.numel(), factor, BLOCK=32)
        y += 1
    return y


def saved_for_backward(x):
    """Eager's backward reads the memory of `y`, which the kernel has changed."""
    y = x.exp()
    with torch.no_grad():
        k.scale_kernel[(triton.cdiv(y.numel(), 32),)](y, y.numel(), 3.0, BLOCK=32)
    return y * 2


def written_view(x):
    y = x + 1
    part = y[:, 2:7]
    k.scale_rows_kernel[(part.shape[0],)](part, *part.stride(), part.shape[1], 2.0, BLOCK=16)
    return y, part * 2


def written_transposed(x):
    y = (x + 1).t()
    k.scale_rows_kernel[(y.shape[0],)](y, *y.stride(), y.shape[1], 2.0, BLOCK=16)
    return y * 2


def written_view_of_argument(x):
    part = x[1:3, ::2]
    k.scale_rows_kernel[(part.shape[0],)](part, *part.stride(), part.shape[1], 2.0, BLOCK=16)
    return x * 2


def written_beyond_a_view(x):
    """The pointer to the first row reaches all rows."""
    y = x + 1
    row = y[0]
    k.scale_kernel[(triton.cdiv(y.numel(), 32),)](row, y.numel(), 2.0, BLOCK=32)
    return y


def read_beyond_a_view(x):
    y = x * 2
    out = torch.empty_like(y)
    n = y.numel()
    k.squares_kernel[(triton.cdiv(n, 32),)](y[0], out, n, BLOCK=32)
    return out


def same_tensor_twice(x):
    y = x + 1
    n = y.numel()
    k.add_kernel[(triton.cdiv(n, 32),)](y, y, y, n, BLOCK=32)
    return y


def two_views_of_one_tensor(x):
    y = x + 1
    left, right = y.view(-1)[:12], y.view(-1)[12:24]
    k.add_kernel[(1,)](left, right, left, 12, BLOCK=16)
    return y, right * 2


def overlapping_views(x):
    y = x.flatten() + 1
    k.copy_kernel[(1,)](y[4:], y, 8)
    return y


def gaps(x):
    """A written argument whose memory has gaps."""
    k.scale_rows_kernel[(x.shape[0],)](x, *x.stride(), x.shape[1], 2.0, BLOCK=16)
    return x + 1, x.t() * 2


def histogram(values):
    counts = torch.zeros(10, dtype=torch.int32)
    n = values.numel()
    k.histogram_kernel[(triton.cdiv(n, 32),)](values, counts, n, BLOCK=32)
    return counts / n


def helper_functions(x):
    out = torch.empty_like(x)
    n = x.numel()
    k.squares_kernel[(triton.cdiv(n, 32),)](x, out, n, BLOCK=32)
    k.map_kernel[(triton.cdiv(n, 32),)](out, out, n, FUNCTION=k.square, BLOCK=32)
    return out


def keywords_in_any_order(x):
    out = torch.zeros_like(x)
    n = x.numel()
    grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 1)  # noqa: E731
    k.copy_kernel[grid](BLOCK=32, out=out, n=n, x=x)
    other = torch.zeros_like(x)
    k.copy_kernel[(triton.cdiv(n, 16), 1, 1)](x, out=other, bias=out, n=n, HAS_BIAS=True)
    return out, other


def several_results(x):
    sines, cosines = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    k.sincos_kernel[(triton.cdiv(n, 32),)](x, sines, cosines, n, BLOCK=32)
    return sines * sines + cosines * cosines, sines


def tuned(x):
    out = torch.empty_like(x)
    n = x.numel()
    k.tuned_add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out * 2


def tuned_in_place(x):
    y = x + 1
    n = y.numel()
    k.tuned_scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n)
    return y * 2


def heuristics(x):
    out = torch.empty_like(x)
    k.heuristic_kernel[(1,)](x, out, x.numel())
    return out + 1


def tuned_heuristics(x):
    out = torch.empty_like(x)
    n = x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"] * meta["ROWS"]) + 1 - meta["EVEN"],)  # noqa: E731
    k.tuned_heuristic_kernel[grid](x, out, n, BLOCK=16)
    return out + 1


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        n = x.numel()
        k.squares_kernel[(triton.cdiv(n, 32),)](x, out, n, BLOCK=32)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        sums = torch.empty_like(x)
        n = x.numel()
        k.add_kernel[(triton.cdiv(n, 32),)](x, x, sums, n, BLOCK=32)
        return sums * gradient


def autograd_function(x):
    return Squares.apply(x.sin()) * 2


class Scaled(torch.autograd.Function):
    """Writes to its input in the forward, and to its gradient in the backward."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.mark_dirty(x)
        k.scale_kernel[(triton.cdiv(x.numel(), 32),)](x, x.numel(), factor, BLOCK=32)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        n = gradient.numel()
        k.scale_kernel[(triton.cdiv(n, 32),)](gradient, n, ctx.factor, BLOCK=32)
        return gradient, None


def autograd_function_in_place(x):
    return Scaled.apply(x.sin(), 3.0) * 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return Squares.apply(self.linear(x)).mean()


def no_history(x):
    """autograd does not see the kernel: its result does not require grad."""
    return add(x, x.detach()), x * 2


def leaf_that_requires_grad(x):
    k.scale_kernel[(triton.cdiv(x.numel(), 32),)](x, x.numel(), 3.0, BLOCK=32)
    return x * 2


def scaled_by_argument(x, factor):
    y = x + 1
    k.scale_kernel[(triton.cdiv(y.numel(), 32),)](y, y.numel(), factor, BLOCK=32)
    return y


def count_as_argument(x, n):
    y = x + 1
    k.scale_kernel[(triton.cdiv(n, 32),)](y, n, 2.0, BLOCK=32)
    return y


def no_elements(x):
    y = x + 1
    n = y.numel()
    if n:
        k.scale_kernel[(triton.cdiv(n, 32),)](y, n, 2.0, BLOCK=32)
    return y


def in_a_loop(x):
    y = x.clone()
    for number in range(3):
        k.scale_kernel[(2,)](y, 50, float(number + 1), BLOCK=32)
        y = y + 1
    return y


def launcher_used_twice(x):
    y = x + 1
    launch = k.scale_kernel[(2,)]
    launch(y, 50, 2.0, BLOCK=32)
    launch(y, 50, 3.0, BLOCK=32)
    return y


def rows_of_a_result(x):
    out = torch.zeros(3, 50)
    for number in range(3):
        k.squares_kernel[(2,)](x, out[number], 50, BLOCK=32)
    return out


def tuple_of_tensors(x, y):
    out = torch.empty_like(x)
    k.add_pair_kernel[(2,)]((x, y), out, 50, BLOCK=32)
    return out


def descriptors(x):
    y = x + 1
    out = torch.empty_like(y)
    source = TensorDescriptor.from_tensor(y, [8, 8])
    target = TensorDescriptor(out, list(out.shape), list(out.stride()), block_shape=[8, 8])
    k.descriptor_kernel[(1,)](source, target)
    return out + 1


def dtype_as_constant(x):
    out = torch.empty(50, dtype=torch.int32)
    k.cast_kernel[(2,)](x * 10, out, 50, DTYPE=tl.int32, BLOCK=32)
    return out


def constant_of_the_module(x):
    y = x + 1
    k.global_factor_kernel[(2,)](y, 50, BLOCK=32)
    return y


def half_precision(x):
    y = x.half()
    k.scale_kernel[(2,)](y, 50, 2.0, BLOCK=32)
    return y


def size_from_data(x, n):
    y = x + 1
    count = n.item()
    k.scale_kernel[(triton.cdiv(count, 32),)](y, count, 2.0, BLOCK=32)
    return y


def checkpointed(x):
    return checkpoint(lambda t: Squares.apply(t.sin()).cos(), x, use_reentrant=False)


class Holder(torch.nn.Module):
    """Has a kernel as an attribute, which writes to a parameter."""

    def __init__(self):
        super().__init__()
        self.kernel = k.scale_kernel
        self.weight = torch.nn.Parameter(rows(8, 8))

    def forward(self, x):
        with torch.no_grad():
            self.kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](
                self.weight, n=self.weight.numel(), factor=2.0, BLOCK=32
            )
        return x @ self.weight


def one(function, *calls, **expected):
    expected = {"graphs": 1, "exact": True, **expected}
    return Program(function.__name__, lambda: function, lambda: [c() for c in calls], **expected)


def inputs(*shape, count=1, grad=False):
    return lambda: tuple(rows(*shape, grad=grad, seed=n) for n in range(count))


def padded():
    return (rows(4, 10)[:, :6],)


def digits():
    return (torch.arange(100) * 7 % 10,)


PROGRAMS = [
    one(add, inputs(5, 9, count=2)),
    one(between_pointwise, inputs(100, count=2), exact=False),
    one(softmax_rows, inputs(4, 10), exact=False),
    one(written_argument, inputs(70)),
    one(written_argument_alone, inputs(70)),
    one(old_value_read_later, inputs(70), exact=False),
    one(written_twice, inputs(70), exact=False),
    one(saved_for_backward, inputs(70, grad=True), exact=False),
    one(written_view, inputs(4, 10)),
    one(written_transposed, inputs(4, 10)),
    one(written_view_of_argument, inputs(4, 10)),
    one(written_beyond_a_view, inputs(4, 10)),
    one(read_beyond_a_view, inputs(4, 10)),
    one(same_tensor_twice, inputs(4, 10)),
    one(two_views_of_one_tensor, inputs(4, 10)),
    one(overlapping_views, inputs(4, 10)),
    one(gaps, padded),
    one(histogram, digits),
    one(helper_functions, inputs(50)),
    one(keywords_in_any_order, inputs(50)),
    one(several_results, inputs(50), exact=False),
    one(tuned, inputs(100)),
    one(tuned_in_place, inputs(100)),
    one(heuristics, inputs(50)),
    one(tuned_heuristics, inputs(64)),
    one(autograd_function, inputs(50, grad=True), exact=False),
    one(autograd_function_in_place, inputs(50, grad=True), exact=False),
    Program("Model", Model, lambda: [inputs(3, 8)()], graphs=1, train=True),
    one(no_history, inputs(50, grad=True)),
    one(leaf_that_requires_grad, inputs(50, grad=True)),
    one(scaled_by_argument, *[partial(lambda f: (rows(50), f), f) for f in (2.0, 3.0, 4.5, 0.25)]),
    one(count_as_argument, *[partial(lambda n: (rows(90), n), n) for n in (90, 64, 33, 1, 16)]),
    one(between_pointwise, *[inputs(n, count=2) for n in (100, 64, 33, 1, 16, 128)], exact=False),
    one(no_elements, inputs(0, 3)),
    one(in_a_loop, inputs(50)),
    one(launcher_used_twice, inputs(50)),
    one(rows_of_a_result, inputs(50)),
    one(tuple_of_tensors, inputs(50, count=2)),
    one(descriptors, inputs(8, 8)),
    one(dtype_as_constant, inputs(50)),
    one(constant_of_the_module, inputs(50)),
    one(half_precision, inputs(50)),
    one(size_from_data, *[partial(lambda n: (rows(50), torch.tensor(n)), n) for n in (50, 33)]),
    one(checkpointed, inputs(50, grad=True), exact=False),
    Program("Holder", Holder, lambda: [inputs(3, 8)()], graphs=1),
    *operators.PROGRAMS,
]
