"""Statistics of rows with infinities and NaNs are infinite or NaN where eager's are."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from tests.programs.joined import joined

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "mean beside var": lambda x: torch.var_mean(x, -1)[1],
    "mean beside var of columns": lambda x: torch.var_mean(x, 0)[1],
    "mean beside var of all": lambda x: torch.var_mean(x)[1],
    "mean beside std": lambda x: torch.std_mean(x, -1, keepdim=True)[1],
    "var beside mean": lambda x: torch.var_mean(x, -1)[0],
    "norm": lambda x: x.norm(dim=-1),
    "norm of order 1": lambda x: x.norm(1, -1),
    "largest": lambda x: x.norm(inf, -1),
    "norm of order 3": lambda x: x.norm(3, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp of all": lambda x: x.logsumexp((0, 1)),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "extremes": lambda x: x.amax(-1) + x.amin(-1),
}


def rows(length: int, dtype: torch.dtype) -> Tensor:
    """Return a row per kind and position. For rows that end with an infinity equal to an inner one,
    eager's var_mean has a NaN mean and jitmagic's is infinite; these are left out.
    """
    torch.manual_seed(length)
    made = [torch.randn(length), torch.full((length,), nan)]
    made += [torch.full((length,), value) for value in (inf, -inf)]
    for values in ((inf,), (-inf,), (nan,), (inf, -inf), (inf, nan)):
        for place in {0, 1, length // 2, length - 1}:
            row = torch.randn(length)
            for i, value in enumerate(values):
                row[(place + i) % length] = value
            made.append(row)
    return torch.stack(made).to(dtype)


def kinds(value: Tensor | None) -> list[str]:
    """Return the class of each element: finite, NaN or a signed infinity."""
    flat = [] if value is None else value.flatten().tolist()
    return [str(v) if v != v or v in (inf, -inf) else "finite" for v in flat]


def assert_kinds(given: Tensor, **options: Any) -> None:
    """Check the classes of results and gradients against eager."""
    inputs, results = joined(PROGRAMS.values(), **options)(given.clone().requires_grad_())
    ends = [result.sum() for result in results]
    made = torch.autograd.grad(ends, inputs, allow_unused=True)
    for (name, program), result, gradient in zip(PROGRAMS.items(), results, made, strict=True):
        x = given.clone().requires_grad_()
        wanted = program(x)
        (of_eager,) = torch.autograd.grad(wanted.sum(), x, allow_unused=True)
        assert kinds(result) == kinds(wanted), name
        assert kinds(gradient) == kinds(of_eager), name


@pytest.mark.parametrize("tier", ["cpp", "blocks", "numba", "aten"])
def test_special_values_equal_eager(tier: str) -> None:
    sizes = ((2, torch.float32), (33, torch.bfloat16), (8, torch.float64))
    for length, dtype in sizes if tier == "cpp" else sizes[1:2]:
        assert_kinds(rows(length, dtype), options={"cpu_tier": tier})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_squares_and_sums_that_overflow(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    steps = torch.linspace(-1, 1, 9, dtype=torch.float64)
    x = torch.stack([steps * 0 + most, steps * most**0.5 * 4, steps.abs() * most]).to(dtype)
    squaring = {n: program for n, program in PROGRAMS.items() if "beside" in n or n == "std"}
    _, results = joined(squaring.values())(x)
    for (name, program), result in zip(squaring.items(), results, strict=True):
        assert kinds(result) == kinds(program(x)), name


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (2, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_parameters_that_are_not_vectors(shape: tuple[int, ...], training: bool) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.batch_norm(x, torch.zeros(5), torch.ones(5), w, w, training)

    def observe(call: Callable[..., Tensor]) -> Tensor | str:
        torch.manual_seed(0)
        try:
            return call(torch.randn(3, 5), torch.randn(shape))
        except RuntimeError as error:
            return str(error)

    expected, result = observe(program), observe(jitmagic.jit(program))
    if isinstance(expected, str) or isinstance(result, str):
        assert result == expected
    else:
        torch.testing.assert_close(result, expected)
