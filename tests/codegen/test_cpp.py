"""Generated C++ against eager and against the program interpreted in float64."""

from __future__ import annotations

import math

import pytest
import torch

import jitmagic
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs
from tests.schedule.random_programs import random_function

from .accuracy import compare
from .built import compiled


def check(fn, *inputs, **options) -> None:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    ours = [clone(x) for x in inputs]
    got = compiled(program, **options)(*ours)
    exact = run(program, [clone(x) for x in inputs], "float64")
    mutated = [clone(x) for x in inputs]
    with torch.no_grad():
        fn(*mutated)
    for a, b, c in zip(got, expected, exact):
        compare(a, b, c)
    for a, b in zip(ours, mutated):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program))


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed):
    fn, inputs = random_function(seed)
    check(fn, *inputs)


@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax_columns", "diamond", "masked"])
def test_unfused_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program), fuse=False)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 257])
def test_tails_of_every_length(n):
    def fn(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True), x.sum(0), (x * 2 + 1).to(torch.float64)

    check(fn, torch.randn(3, n))


def test_reductions_propagate_nan_and_infinity():
    x = torch.randn(6, 70)
    x[0, 3], x[1, 69], x[2, 0] = math.nan, math.inf, -math.inf
    x[3] = -math.inf

    def fn(x):
        return x.amax(-1), x.amin(-1), x.sum(-1), x.argmax(-1), x.argmin(-1), x.relu()

    check(fn, x)


def test_softmax_of_a_masked_row_is_nan_as_in_eager():
    x = torch.randn(4, 33)
    x[2] = -math.inf
    check(lambda x: torch.softmax(x, -1), x)


def test_a_negative_index_counts_from_the_end():
    check(lambda t, i: t[i] + 1, torch.randn(9, 20), torch.tensor([0, -1, 5, -9]))


@pytest.mark.parametrize("bad", [9, -10, 2**40])
def test_an_index_out_of_range_raises(bad):
    table, index = torch.randn(9, 20), torch.tensor([0, 1, 5, 8])
    graph, _ = record(lambda t, i: t[i] * 2, table, index)
    call = compiled(lower(graph, "test"))
    call(table, index)
    with pytest.raises(IndexError):
        call(table, torch.tensor([0, bad, 5, 8]))


def test_large_sums_are_accurate_and_reproducible():
    x = torch.rand(3_000_001)
    graph, _ = record(lambda x: x.sum(), x)
    call = compiled(lower(graph, "test"))
    first, second = call(x)[0], call(x)[0]
    assert torch.equal(first, second)
    assert abs(first.double() - x.double().sum()) < 1e-6 * x.double().sum()


@pytest.mark.parametrize("shape", [(9000, 10), (5001, 70), (3, 40_003), (2100, 300), (3, 40_960)])
def test_long_sums_along_either_axis_are_accurate(shape):
    x = torch.rand(shape) + 0.5
    check(lambda x: (x.sum(0), (x * x).sum(1), x.mean(0) * 2, x.amax(0)), x)


def test_sums_of_whole_tensors_err_less_than_eager_whatever_the_size():
    """Compare the root mean square over 40 sizes: single errors are random."""
    sizes = torch.logspace(0.5, 5.5, 40).int().tolist()
    call = jitmagic.jit(lambda x: x.sum(), options={"dynamic": True, "keep": "compiled"})
    errors = torch.zeros(2, 40, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for n, size in enumerate(sizes):
        x = torch.randn(size, generator=generator) + 0.1
        exact, unit = x.double().sum(), x.double().square().sum().sqrt()
        errors[:, n] = torch.stack([(call(x) - exact), (x.sum() - exact)]) / unit
    made, eager = errors.square().mean(1).sqrt()
    assert made < 0.8 * eager


@pytest.mark.parametrize("tier", ["cpp", "blocks", "numba"])
def test_erfc_errs_by_less_than_eager(tier):
    x = torch.linspace(-4, 9.5, 20_001)
    exact = torch.erfc(x.double())
    call = jitmagic.jit(lambda x: torch.erfc(x), options={"cpu_tier": tier, "keep": "compiled"})
    made, eager = (((y - exact).abs() / exact).max() for y in (call(x), torch.erfc(x)))
    assert made <= eager


def test_two_passes_over_many_rows():
    def fn(x):
        mean = x.mean(0)
        return ((x - mean) ** 2).mean(0), mean

    check(fn, torch.rand(6000, 12) + 3)


def test_views_and_offsets_of_inputs():
    base = torch.randn(40, 50)
    check(lambda a, b: (a * b).sum(-1) + a.t().sum(0), base[3:23, 5:45:2], base[10:30, :20])


@pytest.mark.parametrize("shape", [(500, 400), (33, 70), (16, 600), (600, 16), (129, 257), (5, 90)])
def test_transposed_operands_are_read_in_strips_of_tiles(shape):
    rows, columns = shape
    check(lambda x, y: x + y.t(), torch.randn(rows, columns), torch.randn(columns, rows))
    check(
        lambda x, y: (x * y.transpose(1, 2)).relu(),
        torch.randn(2, rows, columns), torch.randn(2, columns, rows),
    )  # fmt: skip


def test_every_op_over_vectors_and_scalars():
    def fn(x, y):
        positive = x.abs() + 0.1
        return [
            x.exp(), positive.log(), positive.sqrt(), x.tanh(), x.erf(), x.atan2(y), positive**y,
            x.floor(), x.round(), x.trunc(), x.sign(), x.fmod(y), x.remainder(y), x.minimum(y),
            x.sigmoid(), x.expm1(), positive.log1p(), torch.where(x > y, x, y), x.clamp(-1, 1),
        ]  # fmt: skip

    check(fn, torch.randn(5, 37), torch.randn(5, 37))
    check(fn, torch.randn(2), torch.randn(2))
