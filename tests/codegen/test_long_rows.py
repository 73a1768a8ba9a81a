"""Rows that Triton takes in steps: sums of exponentials in one loop, and blocks that begin where
memory is aligned. Run by Triton's interpreter, against eager and the program in float64.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

from jitmagic.codegen.triton import aligned_rows
from jitmagic.codegen.triton import tile as triton_tile

from . import test_triton
from .test_triton import check

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

# The module, not the function of its name.
split_reductions = import_module("jitmagic.schedule.split_reductions")
INFINITY = math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.fixture
def short_steps(monkeypatch):
    monkeypatch.setattr(triton_tile, "ROW", 16)
    monkeypatch.setattr(triton_tile, "STEP", 16)
    monkeypatch.setattr(aligned_rows, "BLOCK", 16)


@pytest.fixture
def pieces(monkeypatch):
    monkeypatch.setattr(split_reductions, "ROW", 32)
    monkeypatch.setattr(split_reductions, "PIECE", 16)


def rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows with infinities, NaN and huge numbers at their ends and inside."""
    torch.manual_seed(0)
    x = torch.randn(9, length, dtype=torch.float64) * 3
    x[1] = -INFINITY
    x[2, 0] = INFINITY
    x[3, -1] = math.nan
    x[4, : length // 2] = -INFINITY
    x[5, length // 2 :] = -INFINITY
    x[6] = 3e38
    x[7, 5], x[7, -2] = -3e38, 90.0
    x[8, 3], x[8, -1] = INFINITY, INFINITY
    return x.to(dtype)


def softmax(x):
    return torch.softmax(x, -1)


def log_softmax(x):
    return torch.log_softmax(x.float() * 0.5, -1)


def logsumexp(x):
    return torch.logsumexp(x, -1)


def largest_and_copy(x):
    wide = x.float()
    largest = wide.amax(-1, keepdim=True)
    total = (wide - largest).exp().sum(-1, keepdim=True)
    return largest, total.log(), x * 1


PROGRAMS = [softmax, log_softmax, logsumexp, largest_and_copy]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_one_loop_computes_a_maximum_and_the_sum_relative_to_it(fn, dtype, short_steps):
    for length in (40, 48, 61):
        text = check(fn, rows(length, dtype))
        assert text.count("acc0, acc0_relative = add_exps(") == (2 if "_row = " in text else 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_pieces_of_rows_have_maxima_of_their_own(fn, dtype, short_steps, pieces):
    for length in (96, 101):
        text = check(fn, rows(length, dtype))
        assert text.count("_parts0(") == 1
        assert "_parts1(" not in text


def variance(x):
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    return ((wide - mean) ** 2).mean(-1), mean


def shifted_variance(x):
    wide = x.float()
    first = wide[..., :1]
    mean = first + (wide - first).mean(-1, keepdim=True)
    return ((wide - mean) ** 2).mean(-1), mean


def normalized_columns(x):
    mean = x.mean(0, keepdim=True)
    square = ((x - mean) ** 2).mean(0, keepdim=True)
    return (x - mean) * torch.rsqrt(square + 1e-5)


@pytest.mark.parametrize("fn", [variance, shifted_variance])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_loop_computes_a_mean_and_the_variance(dtype, fn, short_steps):
    for length in (40, 48):
        x = rows(length, dtype)
        x[6] = 1000 + torch.randn(length) * 0.01
        text = check(fn, x)
        assert text.count("add_square(acc0, acc0_relative, acc0_count, ") == 1
        assert ("acc0_next" in text) == (length == 40)


@pytest.mark.parametrize("fn", [variance, shifted_variance])
@pytest.mark.parametrize("length", [96, 160])
def test_pieces_of_rows_have_means_of_their_own(length, fn, short_steps, pieces):
    x = rows(length, torch.float32)
    x[6] = 1000 + torch.randn(length) * 0.01
    text = check(fn, x)
    assert text.count("_parts0(") == 1
    assert "_parts1(" not in text


def test_variances_of_columns(short_steps, monkeypatch):
    monkeypatch.setattr(split_reductions, "STRIDED_ROW", 64)
    monkeypatch.setattr(split_reductions, "STRIDED_PIECE", 32)
    monkeypatch.setattr(triton_tile, "STEP_STRIDED", 128)
    text = check(normalized_columns, torch.randn(960, 40) + 5)
    assert "_parts0(" in text
    assert "_parts1(" not in text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_maximum_of_columns_and_the_sum_relative_to_it(dtype, short_steps, monkeypatch):
    monkeypatch.setattr(triton_tile, "STEP_STRIDED", 128)

    def fn(x):
        wide = x.float() if x.dtype is torch.bfloat16 else x
        largest = wide.amax(0)
        return largest, (wide - largest).exp().sum(0)

    text = check(fn, rows(240, dtype).mT.contiguous())
    assert text.count("acc0, acc0_relative = add_exp(") == 1


def test_a_sum_relative_to_another_maximum_has_its_own_loop(short_steps):
    def fn(x, y):
        return (x - y.amax(-1, keepdim=True)).exp().sum(-1)

    text = check(fn, torch.randn(4, 50), torch.randn(4, 50))
    assert "add_exp" not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [41, 63, 65])
def test_blocks_begin_at_aligned_elements(dtype, length, short_steps):
    def fn(x, w):
        y = x.float() * w
        return (y - y.mean(-1, keepdim=True)).to(x.dtype), y.amax(-1), x.flip(-1)

    text = check(fn, torch.randn(5, length).to(dtype), torch.randn(length))
    assert f"j0_row // {16 // dtype.itemsize} * " in text
    part = torch.randn(5, length + 3).to(dtype)
    check(fn, part[:, 1:-2], torch.randn(length))  # neither rows nor the first element are aligned


@pytest.mark.parametrize("length", [96, 101])
def test_blocks_of_rows_with_values_of_their_own(length, monkeypatch):
    monkeypatch.setattr(triton_tile, "ROW_BLOCKS", (32, 16))

    def fn(x, scale, target):
        column = torch.arange(x.shape[-1])
        return x * scale[:, None] + (column == target[:, None]), x.to(torch.bfloat16)

    text = check(fn, torch.randn(7, length), torch.randn(7), torch.randint(0, length, (7,)))
    assert "i0 = pid // " in text
    assert ("_row = " in text) == (length % 4 != 0)


@pytest.mark.parametrize("length", [2560, 2563])
def test_programs_loop_along_many_rows(length, monkeypatch):
    monkeypatch.setattr(triton_tile, "ROW_LOOP", 2048)
    monkeypatch.setattr(triton_tile, "BLOCK", 512)
    monkeypatch.setattr(aligned_rows, "BLOCK", 512)
    monkeypatch.setattr(test_triton, "H200", replace(test_triton.H200, multiprocessors=2))

    def fn(x, largest, target):
        column = torch.arange(x.shape[-1])
        chosen = column == target[:, None]
        return ((x.float() - largest[:, None]).exp() - chosen.float()).to(x.dtype)

    target = torch.randint(0, length, (11,))
    text = check(fn, torch.randn(11, length).to(torch.bfloat16), torch.randn(11), target)
    assert text.count("for r_at in ") == (2 if length % 8 else 1)
    assert "num_stages=3" in text
