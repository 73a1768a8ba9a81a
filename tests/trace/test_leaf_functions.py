"""Python functions of torch that one node cannot hold are inlined: callables and objects as
arguments, checks of data, conversions that the node's rule does not know of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

import jitmagic

X = torch.linspace(-2.0, 3.0, 12).reshape(3, 4)
Y = X.flip(0) * 0.5
COUNTS = torch.arange(24).reshape(2, 3, 4)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).abs().sum(-1)


CASES = {
    "a callable": lambda x, y: nnf.triplet_margin_with_distance_loss(
        x, y, y * 2, distance_function=_distance
    ),
    "a lambda": lambda x, y: nnf.triplet_margin_with_distance_loss(
        x, y, y * 2, distance_function=lambda a, b: (a - b).square().sum(-1)
    ),
    "a check of data": lambda x, y: nnf.gaussian_nll_loss(x, y, y.abs() + 1),
    "a check, no reduction": lambda x, y: nnf.gaussian_nll_loss(
        x, y, y.abs() + 1, full=True, reduction="none"
    ),
    "a conversion": lambda x, y: x + nnf.softmin(COUNTS[0], dim=-1, dtype=torch.float32),
}


def _run(f: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    made = f(leaf, y)
    made.sum().backward()
    return made.detach(), leaf.grad  # type: ignore[return-value]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("case", CASES)
def test_one_graph_as_eager(case: str, backend: str) -> None:
    compiled = jitmagic.jit(CASES[case], fullgraph=True, backend=backend)
    for x, y in ((X, Y), (X.t().contiguous().t(), Y), (X * 3, Y.expand(3, 4))):
        for ours, eager in zip(_run(compiled, x, y), _run(CASES[case], x, y), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_check_that_fails_raises_as_eager(backend: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nnf.gaussian_nll_loss(x, x, y)

    compiled = jitmagic.jit(f, fullgraph=True, backend=backend)
    compiled(X, Y.abs())
    for run in (f, compiled):
        with pytest.raises(ValueError, match="var has negative"):
            run(X, Y)
    torch.testing.assert_close(compiled(X, Y.abs()), f(X, Y.abs()))


def test_what_needs_data_is_still_a_break() -> None:
    with pytest.raises(jitmagic.Unsupported, match="data"):
        jitmagic.jit(lambda x: nnf.one_hot(x), fullgraph=True)(COUNTS)
    ours = jitmagic.jit(lambda x: nnf.one_hot(x + 0) + 1)(COUNTS)
    assert torch.equal(ours, nnf.one_hot(COUNTS) + 1)


def test_a_table_of_torch_is_read_with_guards() -> None:
    options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")
    pytest.importorskip("torch.nn.modules.linear_cross_entropy")
    chosen = options.LinearCrossEntropyOptions()
    classes = torch.tensor([1, 0, 4])

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nnf.linear_cross_entropy(x, weight, classes, options=chosen)

    weight = torch.linspace(-1, 1, 20).reshape(5, 4)
    compiled = jitmagic.jit(f, fullgraph=True)
    for ours, eager in zip(_run(compiled, X, weight), _run(f, X, weight), strict=True):
        torch.testing.assert_close(ours, eager)
