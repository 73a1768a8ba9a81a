"""Split reductions keep their meaning: by the reference interpreter, in float64."""

from __future__ import annotations

import math
from itertools import product
from math import prod

import pytest
import torch

from jitmagic.devices import Target
from jitmagic.loops.free_axes import value_axes
from jitmagic.loops.interp import run
from jitmagic.loops.ir import LoopProgram, Nest, Reduction, walk
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.schedule.dependencies import store_values
from tests.loops.recording import clone, record

H200 = Target("cuda", "triton", "a test", "sm_90", 1, 0, 50 << 20, "", 132)


def check(fn, *inputs) -> int:
    """Returns the number of nests."""
    graph, _ = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    result = schedule(program, H200, Options())
    verify(result.program)
    assert reduced(result.program) <= 2.5 * reduced(program) + 10_000
    first, second = [clone(x) for x in inputs], [clone(x) for x in inputs]
    expected, got = run(program, first, "float64"), run(result.program, second, "float64")
    for a, b in zip([*got, *second], [*expected, *first]):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
    return sum(isinstance(step, Nest) for step in result.program.steps)


def reduced(program: LoopProgram) -> int:
    """Return the number of elements that the program's reductions read in total."""
    total = 0
    for nest in program.steps:
        if isinstance(nest, Nest):
            free = value_axes(nodes := walk(store_values(nest.stores)))
            for node in nodes:
                if isinstance(node, Reduction):
                    axes = {*nest.outer, *node.axes} | free[node]
                    total += prod(axis.extent for axis in axes)
    return total


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


CASES = {
    "full sum": (lambda x: x.sum(), [(300, 301)], 2),
    "full sum and max": (lambda x: (x.sum(), x.amax() + 1), [(300, 301)], 2),
    "variance": (lambda x: ((x - x.mean()) ** 2).mean(), [(40001,)], 3),
    "column sum": (lambda x, y: (x * y).sum(0), [(3000, 40), (3000, 40)], 2),
    "softmax of few long rows": (softmax, [(3, 40000)], 3),
    "softmax of one long row": (softmax, [(40000,)], 5),
    "scaled by its sum": (lambda x: x / x.sum(), [(200, 301)], 3),
    "rows are many": (softmax, [(600, 100)], 1),
    "rows are short": (softmax, [(4, 4096)], 1),
    "argmax of everything": (lambda x: x.argmax(), [(200, 201)], 2),
    "argmin of a long row": (lambda x: x.argmin(-1) + 1, [(2, 40001)], 2),
    "any and all": (lambda x: ((x > 3).any(), (x < 9).all()), [(40001,)], 2),
    "in place": (lambda x: x.copy_(x / x.sum()), [(40001,)], 3),
    "channels": (lambda x: x - x.mean((0, 2), keepdim=True), [(8, 3, 5000)], 3),
}


@pytest.mark.parametrize("name", CASES)
def test_split_reductions_keep_their_meaning(name):
    fn, shapes, nests = CASES[name]
    torch.manual_seed(0)
    assert check(fn, *[torch.randn(shape) for shape in shapes]) == nests


def test_nan_and_ties():
    x = torch.zeros(40001)
    x[30000] = x[37000] = 5.0
    check(lambda x: (x.argmax(), x.amax(), x.argmin()), x)
    x[36000] = x[20000] = math.nan
    check(lambda x: (x.argmax(), x.amax(), x.argmin()), x)
    check(lambda x: x.argmax(), torch.full((40001,), -math.inf))


def test_small_devices_do_not_split():
    graph, _ = record(lambda x: x.sum(), torch.randn(300, 301))
    cpu = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")
    result = schedule(lower(graph, "test"), cpu, Options())
    assert sum(isinstance(step, Nest) for step in result.program.steps) == 1


def normalized(x, weight, mean, variance, axes):
    """Batch norm in training: statistics are written in place, and the normalized values stored."""
    center = x.mean(axes, keepdim=True)
    square = ((x - center) ** 2).mean(axes, keepdim=True)
    mean.copy_(mean * 0.9 + center * 0.1)
    variance.copy_(variance * 0.9 + square * 0.1)
    return torch.relu((x - center) * torch.rsqrt(square + 1e-5) * weight)


def gradients(x, y, weight, axes):
    """Its backward: two sums of one gradient, which all the results need."""
    tangent = torch.where(y > 0, x, 0.0)
    count = x.numel() // weight.numel()
    a, b = tangent.sum(axes, keepdim=True), (tangent * y).sum(axes, keepdim=True)
    return (tangent - a / count - y * b / count) * weight, a, b * weight


SIZES = [(2, 3, 16000), (2, 3, 20000), (40, 600, 9), (3, 300, 150), (300, 3, 64), (1, 1, 70000)]


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("fn", [normalized, gradients], ids=lambda fn: fn.__name__)
def test_statistics_of_channels(fn, shape, last):
    torch.manual_seed(0)
    n, c, k = shape
    x, y = torch.randn(n, c, k), torch.randn(n, c, k)
    if last:
        x, y = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, y))
    weight, *running = (torch.rand(1, c, 1) for _ in range(3))
    rest = (weight, *running) if fn is normalized else (y, weight)
    check(lambda *inputs: fn(*inputs, (0, 2)), x, *rest)


WIDE = [(1, 20000), (7, 20000), (600, 6000)]  # the last is not split


@pytest.mark.parametrize(("rows", "width"), [*product((1, 7, 600), (8, 64)), *WIDE])
def test_long_rows_with_short_and_long_reductions(rows, width):
    """One of the two is split; the other is not recomputed at each point."""
    torch.manual_seed(0)
    x, y = torch.randn(rows, width), torch.randn(rows, 30)
    check(lambda x, y: x * (y * y).sum(-1, keepdim=True) + x.sum(-1, keepdim=True), x, y)
    check(lambda x, y: x.copy_(x * y.mean(-1, keepdim=True) / x.sum(-1, keepdim=True)), x, y)


@pytest.mark.parametrize("rows", [(900,), (40, 50)], ids=str)
@pytest.mark.parametrize("parts", [(4, 4), (1, 7), (3, 3, 2)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_rows_reduced_before_a_concatenation_are_reduced_once(rows, parts, turned):
    """Rotary embedding after an RMS norm: the rows are reduced once, not for each element."""
    x, weight = torch.randn(*rows, 8), torch.randn(8)

    def rotated(x, weight):
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight
        y = y.transpose(0, -2) if turned else y
        pieces = y.split(parts, -1)
        return y * 2 + torch.cat([-pieces[-1], *pieces[:-1]], -1), torch.cat([y, y * 3], -1)

    check(rotated, x, weight)


def test_concatenated_rows_keep_their_reductions():
    """A mask along the rows: outside of it there is nothing to reduce."""
    x, y = torch.randn(5, 9), torch.randn(3, 9)
    check(lambda x, y: torch.cat([x / x.sum(-1, keepdim=True), y / y.sum(-1, keepdim=True)]), x, y)
    check(lambda x, y: torch.cat([x.sum(-1), y.sum(-1) * 2]), x, y)
