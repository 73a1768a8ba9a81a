"""Operators of torch that write to arguments beside the first, or to several, are as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

aten = torch.ops.aten
SHAPES = ((2, 3), (4, 1), (0, 3), (1, 5))


def noisy(x: Tensor) -> Any:
    return torch.rrelu(x, 0.1, 0.4, training=True), torch.rand(2)


def noise_kept(x: Tensor) -> Any:
    noise = torch.zeros_like(x)
    return aten.rrelu_with_noise(x, noise, 0.1, 0.4, True), noise + 1


def statistics(x: Tensor, mean: Tensor, var: Tensor) -> Any:
    made = aten._batch_norm_with_update(x, mean + 1, mean * 2, mean, var, 0.1, 1e-5)
    return made[0], mean * 2


def extremes(x: Tensor, values: Tensor, places: Tensor) -> Any:
    torch.cummax(x.detach(), 1, out=(values, places))
    return values + 1, places


def parts(x: Tensor, mantissa: Tensor, exponent: Tensor) -> Any:
    return torch.frexp(x.detach(), out=(mantissa, exponent))


def sorted_into_views(x: Tensor, values: Tensor, places: Tensor) -> Any:
    torch.sort(x.detach(), 1, out=(values, places[...]))
    return x * 2


def wholes(x: Tensor, *dtypes: torch.dtype) -> list[Tensor]:
    return [torch.zeros(x.shape, dtype=dtype) for dtype in dtypes]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[Tensor], list[Tensor]]]] = {
    "noisy": (noisy, lambda x: []),
    "noise_kept": (noise_kept, lambda x: []),
    "statistics": (statistics, lambda x: [torch.zeros(x.shape[1]), torch.ones(x.shape[1])]),
    "extremes": (extremes, lambda x: wholes(x, torch.float32, torch.int64)),
    "parts": (parts, lambda x: wholes(x, torch.float32, torch.int32)),
    "sorted_into_views": (sorted_into_views, lambda x: wholes(x, torch.float32, torch.int64)),
}


def seen(call: Callable[..., Any], x: Tensor, beside: list[Tensor]) -> list[Any]:
    """Results, gradient, what was written and how often, and what is drawn next."""
    x, beside = x.detach().clone().requires_grad_(x.requires_grad), [t.clone() for t in beside]
    torch.manual_seed(3)
    made = call(x, *beside)
    parts = [made] if isinstance(made, Tensor) else list(made)
    ends = [t.sum() for t in parts if t.requires_grad]
    gradient = torch.autograd.grad(sum(ends), x, allow_unused=True)[0] if ends else None
    versions = [t._version for t in beside]
    return [*(t.detach() for t in parts), *beside, gradient, versions, torch.rand(2)]


@covered(name=PROGRAMS, grad=[False, True], backend=["native", "aot_eager"])
def test_what_is_written_is_eagers(name: str, grad: bool, backend: str) -> None:
    program, others = PROGRAMS[name]
    compiled = jitmagic.jit(program, fullgraph=True, backend=backend)
    for shape in SHAPES if name != "statistics" else SHAPES[:2]:
        x = torch.linspace(-2, 2, shape[0] * shape[1]).reshape(shape).requires_grad_(grad)
        wanted, have = seen(program, x, others(x)), seen(compiled, x, others(x))
        torch.testing.assert_close(have, wanted, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_out_that_eager_resizes_or_refuses_runs_in_eager(backend: str) -> None:
    compiled = jitmagic.jit(extremes, backend=backend)
    x = torch.randn(3, 4)
    for values in (torch.zeros(0), torch.zeros(2, 2)):
        wanted = seen(extremes, x, [values, torch.zeros(3, 4, dtype=torch.int64)])
        have = seen(compiled, x, [values, torch.zeros(3, 4, dtype=torch.int64)])
        torch.testing.assert_close(have, wanted)
    same = torch.zeros(3, 4)
    for call in (extremes, compiled):
        with pytest.raises(RuntimeError):
            call(x, same, same)


@pytest.mark.parametrize("features", [5, 4000])
@pytest.mark.parametrize("kept", [torch.float32, None], ids=["float32", "16 bits"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_statistics_of_16_bits(dtype: torch.dtype, kept: torch.dtype | None, features: int) -> None:
    x = torch.linspace(-2, 2, 12 * features).reshape(4, 3, features).to(dtype)
    mean, var = torch.zeros(3, dtype=kept or dtype), torch.ones(3, dtype=kept or dtype)

    def program(x: Tensor, mean: Tensor, var: Tensor) -> Any:
        return aten._batch_norm_with_update(x, mean + 1, mean * 2, mean, var, 0.1, 1e-5)

    compiled = jitmagic.jit(program, fullgraph=True)
    wanted, have = seen(program, x, [mean, var]), seen(compiled, x, [mean, var])
    torch.testing.assert_close(have, wanted)
