"""Reductions cut into pieces mean what they meant: by the reference interpreter, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from jitmagic.loops.interp import run
from jitmagic.loops.ir import Nest
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.target import Target
from tests.loops.recording import clone, record

H200 = Target("cuda", "triton", "a test", "sm_90", 1, 0, 50 << 20, "", 132)


def check(fn, *inputs) -> int:
    """Returns the number of nests."""
    graph, _ = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    result = schedule(program, H200, Options())
    verify(result.program)
    first, second = [clone(x) for x in inputs], [clone(x) for x in inputs]
    expected, got = run(program, first, "float64"), run(result.program, second, "float64")
    for a, b in zip([*got, *second], [*expected, *first]):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
    return sum(isinstance(step, Nest) for step in result.program.steps)


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


CASES = {
    "full sum": (lambda x: x.sum(), [(300, 301)], 2),
    "full sum and max": (lambda x: (x.sum(), x.amax() + 1), [(300, 301)], 2),
    "variance": (lambda x: ((x - x.mean()) ** 2).mean(), [(40001,)], 3),
    "column sum": (lambda x, y: (x * y).sum(0), [(3000, 40), (3000, 40)], 2),
    "softmax of few long rows": (softmax, [(3, 40000)], 5),
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
def test_same_meaning(name):
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


def test_small_devices_keep_their_nests():
    graph, _ = record(lambda x: x.sum(), torch.randn(300, 301))
    cpu = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")
    result = schedule(lower(graph, "test"), cpu, Options())
    assert sum(isinstance(step, Nest) for step in result.program.steps) == 1
