"""Triton kernels of the kinds that users write."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def softmax_kernel(out, x, in_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * in_stride + offsets, mask=mask, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    result = values / tl.sum(values, axis=0)
    tl.store(out + row * out_stride + offsets, result, mask=mask)


@triton.jit
def scale_kernel(x, n, factor, BLOCK: tl.constexpr):
    """Multiplies in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def scale_rows_kernel(x, row_stride, column_stride, columns, factor, BLOCK: tl.constexpr):
    """Multiplies a matrix with any strides in place."""
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    pointers = x + tl.program_id(0) * row_stride + offsets * column_stride
    tl.store(pointers, tl.load(pointers, mask=mask) * factor, mask=mask)


@triton.jit
def histogram_kernel(values, counts, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    bins = tl.load(values + offsets, mask=mask)
    tl.atomic_add(counts + bins, 1, mask=mask)


@triton.jit
def square(value):
    return value * value


@triton.jit
def store_squares(pointers, values, mask):
    tl.store(pointers, square(values), mask=mask)


@triton.jit
def squares_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    store_squares(out + offsets, tl.load(x + offsets, mask=mask), mask)


@triton.jit
def map_kernel(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, FUNCTION(tl.load(x + offsets, mask=mask)), mask=mask)


@triton.jit
def copy_kernel(
    x, out, n, factor=2.0, bias=None, HAS_BIAS: tl.constexpr = False, BLOCK: tl.constexpr = 16
):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask) * factor
    if HAS_BIAS:
        values += tl.load(bias + offsets, mask=mask)
    tl.store(out + offsets, values, mask=mask)


@triton.jit
def sincos_kernel(x, sines, cosines, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask)
    tl.store(sines + offsets, tl.sin(values), mask=mask)
    tl.store(cosines + offsets, tl.cos(values), mask=mask)


launches: list[int] = []  # the block of each launch that was measured


def measured(launch: Any, quantiles: Any) -> list[float]:
    """Measure as Triton would: launch several times; the smallest block counts as the fastest."""
    for _ in range(3):
        launch()
    return [float(len(launches))] * 3


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=2) for block in (32, 64)],
    key=["n"],
    do_bench=measured,
)
@triton.jit
def tuned_add_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)


@triton.autotune(
    [triton.Config({"BLOCK": block}) for block in (32, 64)],
    key=["n"],
    restore_value=["x"],
    do_bench=measured,
)
@triton.jit
def tuned_scale_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * 2, mask=mask)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def heuristic_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * 3, mask=mask)


@triton.autotune([triton.Config({"ROWS": rows}) for rows in (1, 2)], key=["n"], do_bench=measured)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_heuristic_kernel(x, out, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr):
    for part in range(ROWS):
        offsets = (tl.program_id(0) * ROWS + part) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out + offsets, tl.load(x + offsets) - 1)
        else:
            mask = offsets < n
            tl.store(out + offsets, tl.load(x + offsets, mask=mask) - 1, mask=mask)


@triton.jit
def add_pair_kernel(pair, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(pair[0] + offsets, mask=mask) + tl.load(pair[1] + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def cast_kernel(x, out, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask).to(DTYPE), mask=mask)


FACTOR = tl.constexpr(3)


@triton.jit
def global_factor_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * FACTOR, mask=mask)


@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def triple_kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) * 3, mask=mask)


@triton.jit
def stores_in_second(pointers, others, values, mask):
    tl.store(others, values, mask=mask)


@triton.jit
def stores_in_first(pointers, others, values, mask):
    tl.store(pointers, values, mask=mask)


store_helper = stores_in_first


@triton.jit
def replaced_helper_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    store_helper(x + offsets, y + offsets, tl.load(x + offsets, mask=mask) + 1, mask)


@triton.jit
def failing_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 16, "the block is too large")
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets) + 1)


@triton.jit
def descriptor_kernel(x, out):
    out.store([0, 0], x.load([0, 0]) * 2)
