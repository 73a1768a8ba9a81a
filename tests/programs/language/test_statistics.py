"""cov and corrcoef, which look at their weights before they compute, and warn or raise."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic

from ..counts import counts_of

Call = Callable[..., Tensor]
CALLS: dict[str, Call] = {
    "rows": lambda x, n, w: torch.cov(x),
    "method": lambda x, n, w: x.cov(correction=2),
    "vector": lambda x, n, w: x[0].cov() * torch.corrcoef(x[1]),
    "counts": lambda x, n, w: torch.cov(x, fweights=n),
    "weights": lambda x, n, w: torch.cov(x, aweights=w),
    "weights, uncorrected": lambda x, n, w: torch.cov(x, correction=0, aweights=w),
    "both": lambda x, n, w: x.cov(correction=1, fweights=n, aweights=w),
    "correlation": lambda x, n, w: torch.corrcoef(x),
    "correlation of a method": lambda x, n, w: (x * 2).corrcoef(),
}


def given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(3, 7).to(dtype) * 3
    weights = torch.rand(7, requires_grad=True)
    x = x.requires_grad_(dtype.is_floating_point or dtype.is_complex)
    return x, torch.randint(1, 5, (7,)), weights


def observed(call: Call, *args: Tensor) -> tuple[list[Tensor | None], list[str]]:
    """The result and the gradients, and what was warned of or raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = call(*args)
        except RuntimeError as error:
            return [], [str(error)]
    leaves = [t for t in args if t.requires_grad]
    gradients: tuple[Tensor | None, ...] = ()
    if made.requires_grad:
        gradients = torch.autograd.grad(made.abs().sum(), leaves, allow_unused=True)
    return [made.detach(), *gradients], [str(warning.message) for warning in caught]


def assert_same(call: Call, plain: Call, *args: Tensor) -> None:
    (ours, said), (eager, wanted) = observed(call, *args), observed(plain, *args)
    assert said == wanted
    torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
@pytest.mark.parametrize("call", CALLS)
def test_one_graph_with_eagers_result_and_gradients(call: str, dtype: torch.dtype) -> None:
    tagged = jitmagic.jit(CALLS[call], fullgraph=True, backend="aot_eager")
    assert_same(tagged, CALLS[call], *given(dtype))
    assert counts_of(tagged).graphs == 1


@pytest.mark.parametrize("call", ["counts", "weights", "both"])
def test_what_eager_refuses_or_warns_of_it_refuses_or_warns_of(call: str) -> None:
    tagged = jitmagic.jit(CALLS[call])
    x, n, w = given()
    one = torch.eye(7)[0]
    for counts, weights in ((n, w), (-n, w), (n, -w), (n * 0, w * 0), (one.long(), one), (n, w)):
        assert_same(tagged, CALLS[call], x, counts, weights)


def test_too_few_observations_are_eagers_to_warn_of() -> None:
    tagged = jitmagic.jit(lambda x: torch.cov(x))
    for x in (torch.randn(3, 1), torch.randn(3, 0), torch.randn(3, 4)):
        assert_same(tagged, torch.cov, x)
