"""Calls that take a size as a scalar argument give eager's dtype, shape and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic

Program = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, ...]]

PROGRAMS: dict[str, Program] = {
    "full": lambda x, i, n: (
        torch.full((2,), n),
        torch.full((n,), 1),
        torch.full((2,), n, dtype=torch.float32),
    ),
    "new_full": lambda x, i, n: (x.new_full((2,), n), i.new_full((n,), n)),
    "full_like": lambda x, i, n: (torch.full_like(i, n), torch.full_like(x, n)),
    "mul": lambda x, i, n: (x * n, i * n, n - i, i / n, i // n, i % n),
    "pow": lambda x, i, n: (i.abs() ** n, x.abs() ** n),
    "where": lambda x, i, n: (
        torch.where(x > 0, n, 0),
        torch.where(x > 0, x, n),
        torch.where(i > 0, i, n),
    ),
    "clamp": lambda x, i, n: (x.clamp(max=n), i.clamp(min=-n, max=n)),
    "linspace": lambda x, i, n: (
        torch.linspace(0, 1, n),
        torch.linspace(0, n, 3),
        torch.arange(0.0, n),
        torch.arange(n, 0, -1),
        torch.arange(1, n + 1, 2),
    ),
    "tensor": lambda x, i, n: (
        torch.tensor(n),
        torch.tensor([n, 1]),
        torch.tensor(n / 2),
        torch.as_tensor(n),
    ),
    "masked_fill": lambda x, i, n: (x.masked_fill(x > 0, n), i.masked_fill(i > 0, n)),
    "add": lambda x, i, n: (
        torch.add(i, i, alpha=n),
        torch.add(x, x, alpha=n),
        i + n,
        (i > 0) + n,
        (i > 0) * n,
    ),
    "cmp": lambda x, i, n: (x > n, i == n, i.ne(n)),
    "fill": lambda x, i, n: (
        i.clone().fill_(n),
        x.clone().fill_(n),
        torch.zeros(3, dtype=torch.int32).fill_(n),
    ),
    "eye": lambda x, i, n: (
        torch.eye(n),
        torch.ones(n, dtype=torch.bool),
        torch.empty(n).fill_(2),
        torch.zeros(n, n).triu(n - 3),
    ),
    "cumsum": lambda x, i, n: (i.cumsum(0) / n, x.sum() / n, x.mean() * n, i.sum() // n),
    "bitwise": lambda x, i, n: (i & n, i << 1, i | n, i ^ n),
    "remainder": lambda x, i, n: (
        torch.remainder(x, n),
        torch.fmod(i, n),
        torch.floor_divide(i, n),
        torch.div(i, n, rounding_mode="trunc"),
    ),
    "lerp": lambda x, i, n: (torch.lerp(x, x, 1 / n), x.div(n), i.true_divide(n)),
    "int8": lambda x, i, n: (i.to(torch.int8) + n, i.to(torch.uint8) * n, i.to(torch.int8) / n),
    "bool": lambda x, i, n: (torch.full((2,), n > 3), torch.where(x > 0, n > 3, False)),
    "pad": lambda x, i, n: (F.pad(x, (0, n)), F.pad(i, (1, 1), value=n)),
    "cat": lambda x, i, n: (
        torch.cat([x, x.new_ones(n, 4)]),
        torch.stack([torch.tensor(n), torch.tensor(1)]),
    ),
    "scatter": lambda x, i, n: (
        torch.zeros(n, 4).scatter(0, (i % n), n),
        torch.zeros(n, 4).index_fill(0, torch.tensor([0]), n),
    ),
    "repeat": lambda x, i, n: (
        x.repeat(n, 1),
        x.expand(n, *x.shape),
        x[:1].repeat_interleave(n, 0),
    ),
    "masks": lambda x, i, n: (
        torch.arange(n)[None] <= torch.arange(n)[:, None],
        torch.tril(torch.ones(n, n)),
        torch.ones(n, n).tril(diagonal=-1).bool(),
    ),
    "threshold": lambda x, i, n: (torch.threshold(x, 0.1, n), F.hardtanh(x, -n, n)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_is_an_int(name: str, backend: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        return PROGRAMS[name](x, i, x.shape[0])

    torch.manual_seed(0)
    compiled = jitmagic.jit(program, dynamic=True, backend=backend, fullgraph=True)
    for n in (5, 8, 3, 17, 2):
        x, i = torch.randn(n, 4), torch.randint(-9, 9, (n, 4))
        for made, wanted in zip(compiled(x, i), program(x, i), strict=True):
            assert (made.dtype, made.stride()) == (wanted.dtype, wanted.stride())
            torch.testing.assert_close(made, wanted, equal_nan=True)


@pytest.mark.filterwarnings("error::jitmagic.FallbackWarning")
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_float_of_data_dependent_size_is_a_scalar_of_aten_kernels(backend: str) -> None:
    """Complex numbers have no loops of ours, and the operator wants a tensor there."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        kept = x[x.abs() > 0.5]
        return kept * (1.0 / (kept.shape[0] + 1)) - 1.0 / (kept.shape[0] + 2)

    compiled = jitmagic.jit(scaled, backend=backend, options={"on_error": "raise"})
    for n in (9, 4, 17):
        x = torch.randn(n, dtype=torch.complex64) * 2
        made, wanted = compiled(x), scaled(x)
        assert made.dtype is wanted.dtype
        torch.testing.assert_close(made, wanted)
