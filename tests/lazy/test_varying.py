"""Numbers and sizes that change from batch to batch are inputs of a compiled graph."""

from __future__ import annotations

import gc
import linecache
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from tests.processes import run_forked


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    jitmagic.reset()


@contextmanager
def compiles(at_most: int) -> Iterator[None]:
    """Check how many graphs the block compiles; all its batches of several operations run so."""
    before = jitmagic.lazy.counts()
    yield
    compiled = jitmagic.lazy.counts().compiled - before.compiled
    assert 0 < compiled <= at_most


def recorded(function: Callable[..., Any], *args: Any) -> Any:
    with jitmagic.lazy():
        return function(*args)


def check_same(function: Callable[..., Tensor], *args: Any) -> None:
    """Compare a recorded call with eager: the value or the error, dtype and strides."""
    try:
        wanted = function(*args)
    except Exception as error:
        with pytest.raises(type(error)) as raised:
            recorded(function, *args)
        assert str(raised.value).startswith(str(error))
        return
    found = recorded(function, *args)
    assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride()), args
    torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda text: f"{args}: {text}")
    if found.is_floating_point():  # zeros have their signs
        assert torch.equal(found.signbit() | found.isnan(), wanted.signbit() | wanted.isnan()), args


# ------------------------------------------------------------------------------------------ numbers


def test_schedule_compiles_twice() -> None:
    x = torch.randn(16, 8)
    with compiles(2):
        for step in range(1, 40):
            rate = 0.1 / step
            check_same(lambda x, rate: (x * rate + 1).relu() / (1 - 0.9**rate), x, rate)


def test_numbers_in_keyword_arguments_vary() -> None:
    x = torch.randn(16, 8)
    with compiles(2):
        for step in range(1, 10):
            check_same(lambda x, s: torch.add(x, x, alpha=s).addcmul(x, x, value=-s), x, 0.1 * step)


def test_int_that_counts_compiles_three_times() -> None:
    x = torch.randn(16, 8)
    with compiles(3):  # a constant, another one, and all ints
        for step in (*range(1, 20), 2**31 + 1):
            check_same(lambda x, step: (x * step + 1).relu(), x, step)


def test_numbers_that_vary_one_after_the_other() -> None:
    """A graph in which a second number varies has both as inputs."""
    x = torch.randn(16, 8)
    pairs = [(0.5, 2.0), (0.6, 2.0), (0.7, 2.0), (0.7, 3.0), (0.1, 4.0), (0.2, 0.3)]
    with compiles(3):
        for a, b in pairs:
            check_same(lambda x, a, b: (x * a + b).tanh() - a, x, a, b)


FLOATS = (0.25, 0.1, -0.0, 0.0, math.nan, math.inf, -math.inf, 1e30, 1e300, 2.0)
INTS = (3, 0, -1, 2**31, 2**53 + 1, 2**62)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numbers", [FLOATS, INTS, (True, False)], ids=["float", "int", "bool"])
def test_number_promotes_and_computes_as_in_eager(
    dtype: torch.dtype, numbers: tuple[float, ...]
) -> None:
    x = torch.tensor([1.0, 2.0, -3.0, 0.0, 7.0]).to(dtype)
    for number in numbers:
        check_same(lambda x, s: x.clone() * s, x, number)
        check_same(lambda x, s: s + (x > 0) + x, x, number)
        check_same(lambda x, s: torch.where(x > 0, x, s), x, number)


def test_zero_dimensional_tensor_is_no_number() -> None:
    x, scale = torch.ones(3), torch.tensor(2.0, dtype=torch.float64)
    for number in (2.0, 3.0, 4.0):
        check_same(lambda x, s: x.half() * s + scale, x, number)
        check_same(lambda x, s: (x.sum() * s) + scale, x, number)


def test_numbers_that_give_other_ranks_and_counts() -> None:
    x = torch.randn(4, 6)
    for size in (2, 3, 6, 4):
        check_same(lambda x, size: torch.stack([p.sum() for p in x.exp().split(size, 1)]), x, size)
    for dim in (0, 1, -1):
        check_same(lambda x, dim: (x + 1).sum(dim), x, dim)
        check_same(lambda x, dim: (x + 1).unsqueeze(dim) * 2, x, dim)


# -------------------------------------------------------------------------------------------- sizes


def test_many_sizes_compile_a_few_graphs() -> None:
    def normalised(x: Tensor) -> Tensor:
        y = x.reshape(x.shape[0] * 2, -1).exp()
        return (y / y.sum(1, keepdim=True)).view(x.shape) * x.shape[0]

    with compiles(4):
        for size in (8, 5, 7, 9, 11, 13, 15, 17, 3):
            check_same(normalised, torch.randn(size, 6))


def test_strides_that_differ() -> None:
    for size in range(2, 9):
        check_same(lambda x: (x * 2 + 1).relu(), torch.randn(size, 3))
        check_same(lambda x: (x * 2 + 1).relu(), torch.randn(3, size).t())


def train(sizes: list[int], lazily: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    velocity = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def step(x: Tensor, y: Tensor, rate: float) -> None:
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter, moved in zip(model.parameters(), velocity, strict=True):
                assert parameter.grad is not None
                moved.mul_(0.9).add_(parameter.grad)
                parameter -= rate * moved
                parameter.grad = None

    for number, size in enumerate(sizes):
        x, y = torch.randn(size, 6), torch.randn(size, 2)
        if lazily:
            recorded(step, x, y, 0.1 / (1 + number))
        else:
            step(x, y, 0.1 / (1 + number))
    return [parameter.detach() for parameter in model.parameters()]


def test_training_with_a_schedule_and_a_short_last_batch() -> None:
    epochs = [16, 16, 16, 5] * 3
    with compiles(4):
        found = train(epochs, lazily=True)
    torch.testing.assert_close(found, train(epochs, lazily=False))


# ------------------------------------------------------------------------------- memory and bounds


def test_long_loop_has_bounded_graphs_and_tensors() -> None:
    x, sizes = torch.randn(4), set()
    with compiles(6):
        for step in range(4_000):
            with jitmagic.lazy():
                x = (x * (1.0 - 1 / (step + 2)) + step % 5).tanh()
                y = x.repeat(step % 300 + 1) + 1
            if step % 1000 == 999:
                gc.collect()
                tensors = sum(isinstance(found, Tensor) for found in gc.get_objects())
                sizes.add((tensors, len(linecache.cache)))
    assert len(sizes) == 1 and y.shape == (400,)
    assert not jitmagic.lazy.pending()


def test_long_chain_runs_as_it_is_recorded() -> None:
    x, before = torch.randn(4), jitmagic.lazy.counts()
    with jitmagic.lazy():
        for _ in range(3000):
            x = x.neg()
        assert len(jitmagic.lazy.pending()) < 3000
    after = jitmagic.lazy.counts()
    assert after.recorded - before.recorded == 3000
    assert 2 <= after.batches - before.batches <= 4


def test_programs_that_never_recur_are_not_compiled_for_ever() -> None:
    before = jitmagic.lazy.counts()
    for length in range(2, 60):
        with jitmagic.lazy():
            y = torch.ones(3) + 1
            for _ in range(length):
                y = y.neg()
    after = jitmagic.lazy.counts()
    assert after.batches - before.batches == 58
    assert after.compiled - before.compiled <= 32
    with jitmagic.lazy():  # what recurs is compiled
        y = torch.ones(3) + 1
        for _ in range(59):
            y = y.neg()
    assert jitmagic.lazy.counts().compiled == after.compiled + 1


# -------------------------------------------------------------------------------- the next process

STEPS = """
    import sys, torch, jitmagic

    def step(rate, rows):
        x = torch.linspace(-1, 1, rows * 4).reshape(rows, 4)
        with jitmagic.lazy():
            return (x - rate * (x * 2).tanh()).sum(0).tolist()

    for rate, rows in ((0.1, 8), (0.05, 8), (0.02, 5), (0.01, 7)):
        print(step(rate, rows))
    print(jitmagic.lazy.counts().compiled, "jitmagic.trace.machine" in sys.modules)
"""


def test_next_process_compiles_nothing(tmp_path) -> None:
    kept = {"JITMAGIC_PERSIST": "1", "JITMAGIC_CACHE_DIR": str(tmp_path)}
    first, second = (run_forked(STEPS, imported="torch", **kept) for _ in range(2))
    *values, compiles = first.stdout.splitlines()
    *found, none = second.stdout.splitlines()
    assert (compiles, none) == ("3 True", "0 False"), second.stderr[-2000:]
    assert values == found
