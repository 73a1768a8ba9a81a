"""mark_unbacked: one variant for every size, 0 and 1 too, and a graph break with the line where the
program asks for the size; torch's marks mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import Unsupported
from tests.covering import covered
from tests.programs.counts import counts_of

SIZES = (5, 1, 0, 2, 7, 3, 1, 0)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: ((x * 2 + 1).relu().sum(-1), x.shape[0] * 2),
    "linear": lambda x: F.linear(x, torch.ones(5, 4)).softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)).T.contiguous(),
    "views": lambda x: (x.view(-1), x.reshape(2, -1)),
    "factories": lambda x: torch.zeros(x.shape[0] + 1, 3) + x.shape[0],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "cat": lambda x: (torch.cat([x, x]), x.expand(3, *x.shape), x.mean(0)),
}


def marked(size: int, mark: Callable[[torch.Tensor], None]) -> torch.Tensor:
    x = torch.randn(size, 4)
    mark(x)
    return x


def by_us(x: torch.Tensor) -> None:
    jitmagic.mark_unbacked(x, 0)


def by_torch(x: torch.Tensor) -> None:
    x._dynamo_unbacked_indices = {0}


@covered(name=PROGRAMS, mark=[by_us, by_torch], backend=["native", "eager"])
def test_one_variant_serves_all_sizes(name: str, mark: Any, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = jitmagic.jit(lambda x: program(x), backend=backend, fullgraph=True)
    for size in SIZES:
        x = marked(size, mark)
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)
    handle = handle_of(compiled)
    assert sum(record.result("trace") is not None for record in handle.journal) == 1


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 3:
        return x * 2
    return x - 1


def test_a_branch_is_a_break_with_the_line() -> None:
    compiled = jitmagic.jit(branching, backend="eager")
    for size in SIZES:
        x = marked(size, by_us)
        assert torch.equal(compiled(x), branching(x))
    assert counts_of(compiled).breaks >= 1
    whole = jitmagic.jit(branching, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match=r"x.shape\[0\], which is marked unbacked") as caught:
        whole(marked(5, by_us))
    assert "if x.shape[0] > 3" in str(caught.value)


def test_limits_are_guarded() -> None:
    compiled = jitmagic.jit(lambda x: x * 2, backend="eager")
    for size in (4, 8, 2, 9, 3):  # 9 has another mark
        x = torch.ones(size)
        jitmagic.mark_unbacked(x, 0, max=8 if size <= 8 else 16)
        assert torch.equal(compiled(x), x * 2)
    assert counts_of(compiled).graphs == 2
    with pytest.raises(ValueError, match="greater than"):
        jitmagic.mark_unbacked(torch.ones(3), 0, min=5, max=4)
    with pytest.raises(IndexError):
        jitmagic.mark_unbacked(torch.ones(3), 1)


def test_gradients_at_sizes_zero_and_one() -> None:
    compiled = jitmagic.jit(lambda x, w: (x @ w).pow(2).sum())
    for size in SIZES:
        x, grads = marked(size, by_us), []
        for run in (compiled, lambda x, w: (x @ w).pow(2).sum()):
            w = torch.ones(4, 3, requires_grad=True)
            run(x, w).backward()
            grads.append(w.grad)
        torch.testing.assert_close(*grads)
    assert counts_of(compiled).breaks == 0


@pytest.mark.parametrize(
    ("attributes", "graphs"),
    [
        ({"_dynamo_dynamic_indices": {0}}, 1),
        ({"_dynamo_weak_dynamic_indices": {0}}, 1),
        ({"_dynamo_static_indices": {0}}, 3),
        ({"_dynamo_dynamic_indices": {0}, "_dynamo_static_indices": {0}}, 1),
    ],
)
def test_marks_of_torch(attributes: dict[str, Any], graphs: int) -> None:
    """mark_static has lower precedence than mark_dynamic, as its docstring says."""
    compiled = jitmagic.jit(lambda x: x * 2, backend="eager")
    for size in (3, 9, 5):
        x = torch.ones(size, 2)
        x.__dict__.update(attributes)
        assert torch.equal(compiled(x), x * 2)
    assert counts_of(compiled).graphs == graphs
