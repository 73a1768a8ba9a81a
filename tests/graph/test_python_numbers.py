"""`backend="eager"` computes scalars in Python, bitwise as eager, without 0-dim tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.graph.symbolic.python_numbers import in_python

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, lr_decay=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 1e-2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_step_equals_eager_bitwise(name: str, dtype: torch.dtype) -> None:
    seen = []
    for tag in (lambda f: f, lambda f: jitmagic.jit(f, backend="eager")):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(5, n + 1, dtype=dtype)) for n in range(3)]
        optimizer = OPTIMIZERS[name](weights)

        @tag
        def step(gradients: list[Tensor]) -> None:
            for weight, gradient in zip(weights, gradients, strict=True):  # noqa: B023
                weight.grad = gradient
            optimizer.step()  # noqa: B023

        for _ in range(5):
            step([torch.randn_like(weight) for weight in weights])
        seen.append([weight.detach() for weight in weights])
    for ours, eagers in zip(*seen, strict=True):
        assert torch.equal(ours, eagers)


NUMBERS: dict[str, Callable[[Tensor, float, int], Any]] = {
    "products": lambda x, s, i: (x * (s * 2 + i), x / (s + 3), x - s**2, x + -s),
    "ints": lambda x, s, i: (x * (i // 3), x * (i % 4), x + (i - 7) * i),
    "functions": lambda x, s, i: x * abs(s) + x / (1 + s * s) ** 0.5,
    "in place": lambda x, s, i: x.clone().mul_(s).add_(i / 2).sub_(s / 3),
    "of another dtype": lambda x, s, i: (x.double() * s, x.to(torch.bfloat16) * s, x.long() * i),
    "another place": lambda x, s, i: (s * x, s / x, torch.where(x > s, x, s), x.clamp(max=s)),
    "returned": lambda x, s, i: (x * s, s * 2, i + 1),
    "comparisons": lambda x, s, i: (x > s, x == i, x * max(s, 0.1), x * min(i, 5)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_scalars_are_computed_in_python(name: str) -> None:
    tagged = jitmagic.jit(NUMBERS[name], backend="eager")
    for i, s in enumerate((0.5, 0.1, 1.7, -0.3, 3e-4), start=3):
        x = torch.randn(7)
        for ours, eagers in zip(tagged(x, s, i), NUMBERS[name](x, s, i), strict=True):
            assert type(ours) is type(eagers)
            same = torch.equal(ours, eagers) if isinstance(ours, Tensor) else ours == eagers
            assert same, (ours, eagers)


def test_no_scalar_tensor_remains() -> None:
    def scaled(x: Tensor, s: float, i: int) -> Tensor:
        return x * ((1 - 0.9**2 * s) * 2 + i) / (s + 1.5)

    tagged = jitmagic.jit(scaled, backend="eager")
    for i in range(3):
        tagged(torch.ones(3), 0.1 + i, i)
    gm = list(handle_of(tagged).journal)[-1].result("trace").graph
    calls = [node.target for node in in_python(gm).graph.nodes if node.op == "call_method"]
    assert "to" in str([node.target for node in gm.graph.nodes])
    assert "to" not in calls
    assert torch.full not in [node.target for node in in_python(gm).graph.nodes]
