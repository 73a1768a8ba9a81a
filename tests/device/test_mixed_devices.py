"""Functions that compute on the GPU and on the CPU: kernels are the GPU's, the rest is ATen's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic

pytestmark = pytest.mark.device


def _masked(x: Tensor) -> Tensor:
    mask = torch.tril(torch.ones(x.shape[-1], x.shape[-1])).bool()
    return x.masked_fill(~mask.to(x.device), float("-inf")).softmax(-1)


def _indexed(x: Tensor) -> tuple[Tensor, ...]:
    rows = torch.tensor([2, 0, 1])
    return x[rows] * 2, x[:, rows], x.index_put((rows,), x[:3] + 1, accumulate=True)


def _scaled(x: Tensor) -> tuple[Tensor, ...]:
    scale = torch.tensor(2.0) * 3 + 1
    return x * scale, scale, (x + 1).sum() * torch.tensor(0.5)


def _both(x: Tensor) -> tuple[Tensor, ...]:
    steps = torch.arange(4.0)
    table = (steps[:, None] * steps).t().contiguous()
    return x.sin(), table + 1, table.flip(0), x.cpu() * 2, x.to("cpu").t() + 1


def _positions(x: Tensor) -> Tensor:
    half = torch.exp(torch.arange(0, 4, 2) * -0.5)
    angles = torch.arange(x.shape[0])[:, None] * half
    return x + torch.cat([angles.sin(), angles.cos()], -1).to(x)


def _written(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1)[0] = 7
    y[1] = torch.tensor(3.0)
    return y


PROGRAMS = [_masked, _indexed, _scaled, _both, _positions, _written]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_and_gradients(program: Callable[..., Any], grad: bool, mode: str) -> None:
    run = jitmagic.jit(program, mode=mode)
    for seed in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).cuda()
        x.requires_grad_(grad)
        with warnings.catch_warnings():
            if mode == "default":
                warnings.simplefilter("error", jitmagic.FallbackWarning)
            ours = run(x)
        eager = program(x)
        pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (ours, eager)), strict=True)
        for got, want in pairs:
            assert (got.device, got.dtype, got.stride()) == (want.device, want.dtype, want.stride())
            torch.testing.assert_close(got, want)
        if grad:
            sums = [
                sum(t.sum().cuda() for t in (v if isinstance(v, tuple) else (v,)))
                for v in (ours, eager)
            ]
            torch.testing.assert_close(*(torch.autograd.grad(s, x) for s in sums))


def test_writing_to_an_input_on_the_cpu() -> None:
    def count(x: Tensor, seen: Tensor) -> Tensor:
        seen.add_(1)
        seen.copy_(seen.flip(0) * 2)
        return F.gelu(x)

    run = jitmagic.jit(count)
    x, ours, eager = torch.randn(8, device="cuda"), torch.arange(2.0), torch.arange(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            torch.testing.assert_close(run(x, ours), count(x, eager))
            assert torch.equal(ours, eager)


def test_padding_of_float64_is_exact() -> None:
    x = torch.randn(3, 3, dtype=torch.float64, device="cuda")

    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (1, 2), value=1e-3) * 2

    assert torch.equal(jitmagic.jit(padded)(x), padded(x))


def _bounded(x: Tensor) -> Tensor:
    return torch.clamp(x.sum(), max=torch.tensor(1.0))


def _written_elsewhere(x: Tensor) -> Tensor:
    return torch.mul(x.sum(), 2, out=torch.empty(()))


def _added_elsewhere(x: Tensor) -> Tensor:
    total = torch.tensor(1.0)
    total += x.sum()
    return total


def _product_of_counts(x: Tensor) -> Tensor:
    x //= 2
    return x.long() @ x.long()


def _product_of_bools(x: Tensor) -> Tensor:
    x.neg_()
    return F.linear(x > 0, x > 1)


_REFUSED = [_bounded, _written_elsewhere, _added_elsewhere, _product_of_counts, _product_of_bools]


@pytest.mark.filterwarnings("ignore::jitmagic.FallbackWarning")
@pytest.mark.parametrize("program", _REFUSED, ids=lambda program: program.__name__)
def test_what_the_gpus_kernels_refuse_is_refused_where_eager_refuses_it(
    program: Callable[..., Any],
) -> None:
    eager = torch.tensor([[2.0, 4.0], [6.0, 2.0]], device="cuda")
    ours = eager.clone()
    with pytest.raises(RuntimeError) as wanted:
        program(eager)
    with pytest.raises(type(wanted.value)) as raised:
        jitmagic.jit(program)(ours)
    assert str(raised.value).partition("\n")[0] == str(wanted.value).partition("\n")[0]
    torch.testing.assert_close(ours, eager)


def _defaults(x: Tensor) -> tuple[Tensor, ...]:
    layer = torch.nn.Linear(4, 2)
    made = torch.tensor([1.0, 2.0]), torch.arange(3), torch.zeros(2, device="cpu"), layer.weight
    return *made, torch.randn(3), x * torch.ones(4), layer(x), x.new_zeros(2)


@pytest.mark.parametrize("device", [None, "cuda", "cuda:0", "cpu"])
def test_factories_under_a_default_device(device: str | None) -> None:
    compiled = jitmagic.jit(_defaults, options={"on_error": "raise"})
    torch.set_default_device(device)
    try:
        x = torch.ones(2, 4)
        for _ in range(2):
            torch.manual_seed(0)
            want = _defaults(x)
            torch.manual_seed(0)
            for one, other in zip(compiled(x), want, strict=True):
                assert (one.device, one.dtype) == (other.device, other.dtype)
                torch.testing.assert_close(one, other)
    finally:
        torch.set_default_device(None)
