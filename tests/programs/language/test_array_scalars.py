"""Numbers of numpy beside tensors: constants of the trace, told by type and bits."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of

np = pytest.importorskip("numpy")

NUMBERS = [
    np.float64(2.5), np.float32(0.1), np.int64(3), np.int32(-2), np.uint8(7), np.float64(-0.0),
    np.float32(math.nan), np.float64(math.inf), np.bool_(True),
]  # fmt: skip


class Attention(nn.Module):
    """Scales as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.heads = nn.Linear(8, 8), 1 / np.sqrt(8), np.int64(2)

    def forward(self, x: Tensor) -> Any:
        q = self.layer(x)
        q *= np.sqrt(self.heads * 2)
        scores = q @ q.T * self.scale / np.sqrt(q.size(-1))
        flat = x.reshape(np.prod(x.shape)).sum()
        return scores.softmax(-1), flat, np.prod(x.shape), float(np.log(2.0)), np.lcm(4, 6)


def product(x: Tensor, s: Any) -> Any:
    return x * s, s + x, x.clamp(max=float(s)), torch.tensor(s), s == s, float(s)


def taken(x: Tensor, s: Any) -> Any:
    return x[: s + 1], x.reshape(-1)[s], range(s)[-1], x.sum(s)


def alike(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, Tensor):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, equal_nan=True)
    elif isinstance(wanted, tuple):
        for a, b in zip(got, wanted, strict=True):
            alike(a, b)
    else:
        assert repr(got) == repr(wanted)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_scales_of_a_module_are_constants(backend: str) -> None:
    model = Attention()
    compiled = jitmagic.jit(model.forward, backend=backend, fullgraph=True)
    for x in (torch.randn(4, 8), torch.randn(4, 8)):
        alike(compiled(x), model.forward(x))
    model.scale = np.float32(0.5)
    alike(compiled(torch.ones(4, 8)), model.forward(torch.ones(4, 8)))


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_an_argument_is_told_by_its_bits(number: Any) -> None:
    compiled = jitmagic.jit(product, backend="eager")
    x = torch.tensor([0.0, -0.0, 1.5, -2.0])
    for each in (number, type(number)(number), type(number)(1), number):
        alike(compiled(x, each), product(x, each))
    assert counts_of(compiled).breaks == 0 or type(number) is np.bool_


def test_an_integer_is_an_index() -> None:
    compiled = jitmagic.jit(taken, backend="eager", fullgraph=True)
    for number in (np.int64(1), np.int32(1), np.uint8(1)):
        x = torch.randn(3, 3)
        alike(compiled(x, number), taken(x, number))


@pytest.mark.filterwarnings("error")
def test_what_numpy_warns_of_is_left_to_it() -> None:
    def overflowing(x: Tensor) -> Any:
        return x * 2, np.float32(3e38) * np.float32(10)

    compiled = jitmagic.jit(overflowing)
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="overflow"):
            compiled(torch.ones(2))


def test_a_silent_log_through_a_cache_is_no_break() -> None:
    logger = logging.getLogger("jitmagic.tests.silent")
    logger.setLevel(logging.ERROR)

    @functools.lru_cache(None)
    def once(self: logging.Logger, text: str) -> None:
        self.warning(text)

    def told(x: Tensor) -> Tensor:
        once(logger, f"a shape {tuple(x.shape)}")
        return x + 1

    compiled: Callable[..., Tensor] = jitmagic.jit(told, fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert once.cache_info().misses == 1
