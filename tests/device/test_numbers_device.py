"""Numbers that vary are data on a GPU too: kernels take them by value, optimizers are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.programs.counts import counts_of, eager_of
from tests.programs.training.test_optimizers import OPTIMIZERS, pair, same, train

pytestmark = pytest.mark.device

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def _floats(x: Tensor, a: Tensor, rate: float) -> tuple[Tensor, ...]:
    y = x.clone()
    y.mul_(rate).add_(a, alpha=rate).addcmul_(a, x, value=-rate)
    y.addcdiv_(a, x, value=rate).lerp_(a, rate).div_(rate).sub_(a, alpha=rate)
    return y, x * rate, rate * x, x / rate, x + rate, x - rate, x.lerp(a, weight=rate)


def _computed(x: Tensor, a: Tensor, rate: float) -> tuple[Any, ...]:
    scale = rate / (1 - 0.9 * rate) + 2
    return x * scale, (x * scale + a / rate).sum(), scale


def _integers(x: Tensor, a: Tensor, count: int) -> tuple[Tensor, ...]:
    whole = (x * 100).to(torch.int64)
    kept = torch.where(whole > count, whole, count)
    filled = whole.masked_fill(x > 1.5, count).clamp(max=count + 70)
    return x * count, count - x, x / count, whole // count, whole % count, kept, filled


def _scheduled(x: Tensor, a: Tensor, count: int) -> Tensor:
    return x * (1.0 / (1 + 0.1 * count)) + a / (count * count)


PROGRAMS: list[tuple[Callable[..., Any], list[Any]]] = [
    (_floats, [0.3, 0.25, 0.7, 0.31, 0.9]),
    (_computed, [0.3, 0.25, 0.7, 0.31, 0.9]),
    (_integers, [3, 5, 17, 200, 4]),
    (_scheduled, [3, 5, 17, 200, 4]),
]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("program", "numbers"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_two_compiles_serve_all_numbers(
    program: Callable[..., Any], numbers: list[Any], dtype: torch.dtype, backend: str
) -> None:
    run = jitmagic.jit(program, backend=backend)
    x, a = (torch.rand(33, 40, device="cuda").to(dtype) + 1 for _ in range(2))
    bound = 8 * torch.finfo(dtype).eps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in numbers:
            torch.testing.assert_close(
                run(x, a, number), program(x, a, number), rtol=bound, atol=bound
            )
    assert counts_of(run).graphs <= 2


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_gradients_and_scalars_of_the_cpu(mode: str) -> None:
    def program(x: Tensor, scale: Tensor, rate: float) -> Tensor:
        return (x.sin() * scale * rate + torch.tensor(0.5)).pow(2).sum()

    run = jitmagic.jit(program, mode=mode)
    x = torch.randn(300, 7, device="cuda", requires_grad=True)
    for step in range(6):
        scale, rate = torch.tensor(1.0 + step), 0.5 + step / 8
        ours, eager = run(x, scale, rate), program(x, scale, rate)
        torch.testing.assert_close(ours, eager)
        grads = [torch.autograd.grad(value, x)[0] for value in (ours, eager)]
        torch.testing.assert_close(*grads)


def test_a_scalar_of_the_cpu_is_read_when_the_kernel_is_launched() -> None:
    def program(x: Tensor, count: Tensor) -> Tensor:
        y = x * count
        count += 1
        return y + x * count

    run = jitmagic.jit(program)
    x, ours, eager = torch.randn(50, device="cuda"), torch.tensor(1.0), torch.tensor(1.0)
    for _ in range(4):
        torch.testing.assert_close(run(x, ours), program(x, eager))
        assert ours == eager


# torch has no kernel of Adagrad's fused update for a GPU.
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adagrad_fused"])
def test_an_update_is_compiled_and_agrees(name: str) -> None:
    make, graphs = OPTIMIZERS[name]
    _, ours = train(make, device="cuda")
    assert eager_of(ours.update) == []
    assert ours.counts.breaks == 0
    assert ours.counts.graphs <= graphs + 1  # the first step makes the optimizer's state


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_schedule_of_learning_rates_is_one_graph(mode: str) -> None:
    make, _ = OPTIMIZERS["adamw"]
    eager, ours = pair(make, torch.float32, "cuda", mode=mode)
    for made in (eager, ours):
        schedule = torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.9)
        made.run(20, schedule.step)
    same(eager, ours)
    assert ours.counts.graphs <= 2  # the first step makes the optimizer's state
