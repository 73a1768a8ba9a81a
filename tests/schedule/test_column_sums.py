"""Sums over rows move into the nest that computes the rows, and keep their meaning."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.kernel_verifier import verify_kernel
from jitmagic.codegen.triton.renderer import TritonRenderer
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Nest
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.schedule.result import Schedule
from tests.codegen.accuracy import compare, steps
from tests.codegen.for_gpu import H200
from tests.codegen.interpreted import run_interpreted
from tests.loops.recording import clone, record

SMALL = replace(H200, multiprocessors=2)  # four groups of rows
half = torch.bfloat16


def norm(dy, x, w, mean, rstd):
    hat = (x.float() - mean) * rstd
    g = dy.float() * w.float()
    dx = (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True)) * rstd
    rows = tuple(range(x.dim() - 1))
    return dx.to(x.dtype), (dy * hat).sum(rows).to(w.dtype), dy.float().sum(rows).to(w.dtype)


def activation(dy, x):
    dx = (dy.float() * torch.sigmoid(x.float())).to(x.dtype)
    return dx, dx.sum(0, dtype=torch.float32).to(x.dtype)


def other_operands(dy, x, y, z):
    return dy * torch.sigmoid(x), (y * z).sum(0)


def scheduled(fn, inputs, target=SMALL) -> Schedule:
    graph, _ = record(fn, *[clone(x) for x in inputs])
    result = schedule(lower(graph, "test"), target, Options())
    verify(result.program)
    return result


def sums_in_groups(result: Schedule) -> int:
    nests = [step for step in result.program.steps if isinstance(step, Nest)]
    return sum(store.mode == "total" for nest in nests for store in nest.stores)


def norm_inputs(*shape: int, dtype=torch.float32):
    torch.manual_seed(0)
    dy, x = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    statistics = torch.randn(*shape[:-1], 1), torch.rand(*shape[:-1], 1) + 0.5
    return dy, x, torch.randn(shape[-1]).to(dtype), *statistics


def pair(*shape: int, dtype=torch.float32):
    return norm_inputs(*shape, dtype=dtype)[:2]


CASES = {
    "norm": (norm, norm_inputs(32, 256), 2),
    "norm of ragged rows": (norm, norm_inputs(48, 300), 2),
    "groups of three rows": (norm, norm_inputs(21, 256), 2),
    "norm of halves": (norm, norm_inputs(32, 257, dtype=half), 2),
    "norm of batches": (norm, norm_inputs(4, 16, 256), 2),
    "a group has rows of several batches": (norm, norm_inputs(16, 2, 256), 2),
    "activation": (activation, pair(32, 256), 1),
    "activation of halves": (activation, pair(32, 300, dtype=half), 1),
    "rows are too few": (norm, norm_inputs(4, 256), 0),
    "rows are short": (norm, norm_inputs(64, 128), 0),
    "rows are long": (norm, norm_inputs(16, 9000), 0),
    "no groups of equal size": (norm, norm_inputs(37, 256), 0),
    "other operands": (other_operands, (*pair(32, 256), *pair(32, 256)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_column_sums_keep_their_meaning(name):
    fn, inputs, sums = CASES[name]
    result = scheduled(fn, inputs)
    assert sums_in_groups(result) == sums
    graph, _ = record(fn, *[clone(x) for x in inputs])
    expected = run(lower(graph, "test"), [clone(x) for x in inputs], "float64")
    got = run(result.program, [clone(x) for x in inputs], "float64")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_kernels(name):
    fn, inputs, _ = CASES[name]
    graph, expected = record(fn, *[clone(x) for x in inputs])
    result = scheduled(fn, inputs)
    for step in result.program.steps:
        if isinstance(step, Nest):
            verify_kernel(TritonRenderer().kernel(step, result.program.buffers, SMALL, None))
    plan, source = render(result, SMALL)
    got, _ = run_interpreted(source, plan, [clone(x) for x in inputs])
    exact = run(lower(graph, "test"), [clone(x) for x in inputs], "float64")
    for a, b, c in zip(got, expected, exact, strict=True):
        compare(a, b, c, strides=steps)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_candidates_of_tuning_keep_whole_rows():
    inputs = norm_inputs(32, 2048)
    result = scheduled(norm, inputs)
    nest = next(s for s in result.program.steps if isinstance(s, Nest) and _has_totals(s))
    renderer = TritonRenderer()
    candidates = renderer.candidates(nest, result.program.buffers, SMALL)
    assert candidates
    for config in candidates:
        source = renderer.render([nest], result.program.buffers, SMALL, {nest.name: config})
        assert "for r" not in source.text
        assert "[:, None]" not in source.text


def _has_totals(nest: Nest) -> bool:
    return any(store.mode == "total" for store in nest.stores)


def test_infinity_and_nan_stay_in_their_columns():
    dy, x = pair(32, 256)
    dy[3, 5], dy[7, 9], x[31, 255] = float("inf"), float("nan"), float("-inf")
    plan, source = render(scheduled(activation, (dy, x)), SMALL)
    got, _ = run_interpreted(source, plan, [dy, x])
    for a, b in zip(got, activation(dy, x), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_cpus_keep_their_nests():
    cpu = replace(H200, device="cpu", tier="cpp", isa="avx2", multiprocessors=0)
    assert sums_in_groups(scheduled(norm, norm_inputs(32, 256), cpu)) == 0
