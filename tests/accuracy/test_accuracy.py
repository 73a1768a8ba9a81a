"""Rounding errors of compiled reductions, layers and losses beside eager's, in every tier.

The whole table is `python -m tests.accuracy`; here every reduction, layout, company and tier has
its turn, but not each with each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.codegen.triton import tile as triton_tile
from jitmagic.loops.lower import lower
from tests.codegen.interpreted import run_interpreted
from tests.codegen.test_triton import rendered
from tests.loops.recording import clone, record

from .measure import Every, Row, jitted, measure, summary
from .programs import LAYOUTS, PROGRAMS, Program

REDUCTIONS = [p for p in PROGRAMS if not p.grad]
LAYERS = [p for p in PROGRAMS if p.grad]
SLICES = 6
SEEDS = 4
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def hold(rows: Sequence[Row]) -> None:
    result = summary(rows)
    assert result.good, (result.geomean, result.worst)


@pytest.mark.parametrize("part", range(SLICES))
def test_reductions(part: int) -> None:
    hold(measure(REDUCTIONS[part :: 5 * SLICES], SEEDS, jitted()))


@pytest.mark.parametrize("part", range(2))
def test_layers_and_losses_with_their_gradients(part: int) -> None:
    hold(measure(LAYERS[part::2], SEEDS, jitted()))


def test_numba() -> None:
    pytest.importorskip("numba")
    hold(measure(REDUCTIONS[3::37], SEEDS, jitted(cpu_tier="numba")))


# -- Triton ---------------------------------------------------------------------------------------


def interpreted(every: Every) -> Every:
    """A single program, compiled for a GPU and run by Triton's interpreter."""

    def run(group: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        graph, _ = record(lambda *xs: every(xs)[0], *[clone(x) for x in group])
        plan, source = rendered(lower(graph, "accuracy"))
        got, _ = run_interpreted(source, plan, [clone(x) for x in group])
        return [tuple(got)]

    return run


@needs_triton
@pytest.mark.parametrize("dim", [0, 1])
def test_triton(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps: more of them than a plain sum may have."""
    monkeypatch.setattr(triton_tile, "ROW", 32)
    monkeypatch.setattr(triton_tile, "STEP", 16)
    program = Program(
        "sums in steps",
        lambda x: (x.sum(dim), (x * x).sum(dim), x.exp().sum(dim)),
        ((2, 3000) if dim else (3000, 2),),
    )
    rows = measure([program], 2, interpreted)
    hold(rows)
    assert max(row.ours for row in rows) < 2e-7


# -- the last bit, where a corner follows ---------------------------------------------------------


@pytest.mark.parametrize("tier", ["cpp", "numba", "aten"])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_rounds_where_eager_rounds(tier: str, affine: bool) -> None:
    if tier == "numba":
        pytest.importorskip("numba")
    shapes = [(5, 6, 40), (4, 9, 2, 2), (3, 7, 11, 5), (2, 3, 4, 5, 6)]

    def fn(groups: Sequence[Sequence[Tensor]], training: bool) -> list[Tensor]:
        extra = [g[3:] if affine else (None, None) for g in groups]
        return [
            F.batch_norm(x, mean, var, *wb, training)
            for (x, mean, var, *_), wb in zip(groups, extra, strict=True)
        ]

    compiled = jitmagic.jit(fn, options={"cpu_tier": tier})
    for training in (True, False):
        groups = [
            (torch.randn(s) * 3 + 1, torch.randn(s[1]), torch.rand(s[1]) + 0.5)
            + (torch.randn(s[1]), torch.randn(s[1]))
            for s in shapes
        ]
        kept = [[x.clone() for x in group] for group in groups]
        for got, wanted in zip(compiled(groups, training), fn(kept, training), strict=True):
            assert torch.equal(got, wanted)
        for ours, eagers in zip(groups, kept, strict=True):
            torch.testing.assert_close(ours, tuple(eagers), rtol=1e-6, atol=1e-7)


def test_gradients_jump_where_eagers_jump() -> None:
    """At the corners of relu6 a rounding error decides whether a gradient passes, and what follows
    multiplies it: whoever rounds elsewhere is off by 1e-3 in some runs of ten.
    """
    torch.manual_seed(0)
    # Images of two dimensions may be turned to channels_last, which oneDNN adds in another order
    # where there is no AVX-512.
    layers = [(nn.Conv1d(12, 12, 9, padding=4), nn.BatchNorm1d(12), nn.ReLU6()) for _ in range(9)]
    net = nn.Sequential(*(part for layer in layers for part in layer))
    compiled = jitmagic.jit(copy.deepcopy(net))
    for _ in range(10):
        x = torch.randn(3, 12, 576)
        outs = [one(x) for one in (net, compiled)]
        assert torch.equal(*outs)
        weight = torch.randn_like(outs[0])
        eager, ours = (
            torch.autograd.grad(out, list(one.parameters()), weight)
            for out, one in zip(outs, (net, compiled), strict=True)
        )
        far = math.hypot(*(float((o - e).norm()) for o, e in zip(ours, eager, strict=True)))
        assert far < 2e-5 * math.hypot(*(float(e.norm()) for e in eager))


# -- doubles, whose exact sum is Python's ---------------------------------------------------------


def exact_sums(x: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    sums = [math.fsum(row) for row in rows.tolist()]
    return torch.tensor(sums, dtype=torch.float64)


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_doubles(tier: str, dim: int) -> None:
    if tier == "numba":
        pytest.importorskip("numba")
    x = torch.randn(3000, 30, dtype=torch.float64).t() if dim else torch.randn(3000, 30).double()
    x = x / 3

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(dim), x.abs().sum(dim)

    got = jitmagic.jit(fn, options={"cpu_tier": tier})(x)
    for ours, eager, given in zip(got, fn(x), (x, x.abs()), strict=True):
        exact = exact_sums(given, dim)
        error, of_eager = (ours - exact).norm(), (eager - exact).norm()
        assert error <= 1.5 * of_eager + torch.finfo(torch.float64).eps * exact.norm()


# -- beyond the largest number --------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_are_infinite_or_nan(tier: str, dtype: torch.dtype) -> None:
    """What a compensated sum keeps is NaN there, and must not reach the result."""
    if tier == "numba":
        pytest.importorskip("numba")
    x = torch.ones(5, 20_000, dtype=dtype)
    x[0, 700], x[1, 3], x[1, 19_000] = math.inf, -math.inf, -math.inf
    x[2, 5], x[2, 9000], x[3, 11_000] = math.inf, -math.inf, math.nan

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1), x.sum(0)

    got = jitmagic.jit(fn, options={"cpu_tier": tier})(x)
    for ours, eager in zip(got, fn(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.parametrize("scale", [3e38, 1e30, 1e19, 1e-20, 1e-25, 1e-44])
@pytest.mark.parametrize("size", [2, 7, 1000])
def test_deviations_whose_squares_are_out_of_range(tier: str, scale: float, size: int) -> None:
    """Eager's moments of fp32 are doubles on the CPU."""
    if tier == "numba":
        pytest.importorskip("numba")
    x = torch.rand(size, 5).sub_(0.5) * scale

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.std(0), x.t().std(1, correction=0), x.var(0), *torch.std_mean(x, 0)

    got = jitmagic.jit(fn, options={"cpu_tier": tier})(x)
    for ours, eager in zip(got, fn(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=3e-45)


def test_what_is_measured() -> None:
    """Every layout alone and in company."""
    titles = [p.title for p in PROGRAMS]
    assert len(titles) == len(set(titles))
    for place, *_ in LAYOUTS:
        for company in ("alone", "together", "offset", "bf16"):
            assert any(f"{place} {company}" in title for title in titles)


def test_a_plain_sum_is_noticed() -> None:
    """Adding up one by one is what the limits are there to refuse."""

    def one_by_one(every: Every) -> Every:
        def run(group: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
            if group[0].dtype == torch.float64:
                return every(group)
            return [(torch.from_numpy(np.cumsum(group[0].numpy(), axis=0)[-1]),)]

        return run

    program = Program("sum", lambda x: (x.sum(0),), ((30_000, 4),))
    assert not summary(measure([program], SEEDS, one_by_one)).good
