"""activation_memory_budget: bytes kept, operations computed again, gradients as before."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.autograd.result import Partition

WEIGHTS = [(torch.randn(32, 32) / 6).requires_grad_() for _ in range(4)]


def layers(x: Tensor) -> Tensor:
    for weight in WEIGHTS:
        x = F.gelu(x @ weight) @ weight.T + x
        x = F.layer_norm(F.dropout(x, 0.2), (32,))
    return x.square().mean()


def images(x: Tensor) -> Tensor:
    image = x.view(2, 4, 8, 8)
    kernel = WEIGHTS[0][:, :4, None, None].expand(32, 4, 3, 3) / 9
    return F.conv2d(image, kernel, padding=1).sin().cumsum(1).exp().mean()


def written(x: Tensor) -> Tensor:
    hidden = (x @ WEIGHTS[0]).mul_(2)
    made = (hidden.sin() @ WEIGHTS[1]).add_(hidden)
    return (made.tanh() @ WEIGHTS[2]).cos().sum() + made.relu_().sum()


def gradients(program: Any, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.autograd.grad(program(x), (x, *WEIGHTS), allow_unused=True)


def partition_of(compiled: Any) -> Partition:
    records = handle_of(compiled).journal
    (found,) = [part for record in records if (part := record.result("partition"))]
    return found


def saved_bytes(parts: Partition) -> int:
    kept = parts.forward.graph.output_node().args[0][parts.results :]
    specs = [node.meta["spec"] for node in kept]
    return sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in specs)


@pytest.mark.parametrize("program", [layers, images, written])
@pytest.mark.parametrize("share", [0, 0.3, 0.6, 1])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}])
def test_gradients_are_those_of_eager(program: Any, share: float, options: dict[str, Any]) -> None:
    budget = {"activation_memory_budget": share, **options}
    compiled = jitmagic.jit(program, fullgraph=True, options=budget)
    for _ in range(2):
        x = torch.randn(16, 32, requires_grad=True)
        torch.testing.assert_close(gradients(compiled, x), gradients(program, x))


def test_smaller_budget_keeps_less_and_computes_more_again() -> None:
    x, kept, again = torch.randn(16, 32, requires_grad=True), [], []
    shares = (1, 0.7, 0.4, 0.1, 0)
    for share in shares:
        compiled = jitmagic.jit(layers, options={"activation_memory_budget": share})
        gradients(compiled, x)
        parts = partition_of(compiled)
        kept.append(saved_bytes(parts))
        again.append(0 if parts.budget is None else len(parts.budget.again))
    assert all(more > less for more, less in pairwise(kept))
    assert all(fewer < more for fewer, more in pairwise(again))
    for share, nbytes in zip(shares, kept, strict=True):
        assert nbytes <= kept[-1] + share * (kept[0] - kept[-1])


def test_draws_run_once() -> None:
    compiled = jitmagic.jit(layers, options={"activation_memory_budget": 0})
    gradients(compiled, torch.randn(16, 32, requires_grad=True))
    targets = [str(node.target) for node in partition_of(compiled).backward.graph.nodes]
    assert not any("rand" in target or "dropout" in target for target in targets)


@pytest.mark.parametrize("share", [-0.1, 2, True, "half"])
def test_bad_share_is_refused(share: Any) -> None:
    with pytest.raises(jitmagic.OptionError, match="activation_memory_budget"):
        jitmagic.jit(layers, options={"activation_memory_budget": share})
