"""Sizes that data decide: one graph, and eager's results and gradients for masks with no, one, some
and all elements, under each backend and kind of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic

ROWS, COLUMNS = 12, 4


def coordinates(x: torch.Tensor) -> Any:
    return torch.nonzero(x > 0).neg()


def columns(x: torch.Tensor) -> Any:
    i, j = torch.where(x > 0)
    return x[i, j] * 2, i + j


def argwhere(x: torch.Tensor) -> Any:
    return torch.argwhere(x > 0)[:, 0] * 2


def masked(x: torch.Tensor) -> Any:
    return x[x > 0].exp().sum()


def selected(x: torch.Tensor) -> Any:
    return torch.masked_select(x, x[:, :1] > 0).sin() * 3


def rows(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y @ torch.ones(COLUMNS, 5), y.shape[0] * 2, y.sum(0)


def lengths(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return torch.zeros(y.shape[0], 3) + y[:, None], len(y), y.numel() / x.numel(), y.shape


def reshaped(x: torch.Tensor) -> Any:
    return x[x > 0].view(-1, 1).expand(-1, 3).softmax(-1).sum()


def transposed(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return F.layer_norm(y, (COLUMNS,)).T.contiguous(), y.T.reshape(-1)


def joined(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return torch.cat([y, y * 2]).cumsum(0)


def put(x: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    y[x > 0] = x[x > 0] * 2
    return y


def added(x: torch.Tensor) -> Any:
    index = torch.nonzero(x[:, 0] > 0).squeeze(-1)
    return torch.zeros(ROWS, COLUMNS).index_add_(0, index, x[index] * 2)


def experts(x: torch.Tensor) -> Any:
    scores = x.softmax(-1)
    chosen = F.one_hot(scores.argmax(-1), COLUMNS).T
    out = torch.zeros_like(x)
    for expert in range(COLUMNS):
        (row,) = torch.where(chosen[expert])
        out.index_add_(0, row, x[row] * (expert + 1) * scores[row, expert, None])
    return out


def error(x: torch.Tensor) -> Any:
    y = x * 2
    return F.mse_loss(x[x > 0], y[x > 0], reduction="sum")


def written_between(x: torch.Tensor) -> Any:
    y = x.detach().clone()
    first = y > 0
    before = y[first] * 2
    y.neg_()
    return before, y[y > 0] * 2, y[first] + before


def one_behind_another(x: torch.Tensor) -> Any:
    y = x[x > 0] * 2
    z = y[y > 1] - 1
    return z[z > 0.5].sum() + y.sum()


def loss(x: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return F.cross_entropy(y, torch.ones(y.shape[0], dtype=torch.long), reduction="sum")


def kept_apart(x: torch.Tensor) -> Any:
    hidden = x * 2
    y = hidden[hidden > 0]
    return hidden, y, y.square().sum()


def unique(x: torch.Tensor) -> Any:
    return torch.unique((x.detach() * 2).round()) + 1


def unique_with_counts(x: torch.Tensor) -> Any:
    values, inverse, counts = torch.unique(
        x.detach().round(), return_inverse=True, return_counts=True
    )
    return values[inverse] + 1, counts * 2


def consecutive(x: torch.Tensor) -> Any:
    return torch.unique_consecutive((x > 0).flatten()).long() * 3


def counted(x: torch.Tensor) -> Any:
    return torch.bincount((x.abs() * 2).long().flatten(), minlength=3) * 2


def repeated(x: torch.Tensor) -> Any:
    return torch.repeat_interleave(x, (x[:, 0] > 0).long() * 2, dim=0).relu()


PROGRAMS: tuple[Callable[..., Any], ...] = (
    coordinates, columns, argwhere, masked, selected, rows, lengths, reshaped, transposed, joined,
    put, added, experts, error, written_between, one_behind_another, loss, kept_apart, unique,
    unique_with_counts,
    consecutive, counted, repeated,
)  # fmt: skip
MASKS: dict[str, Callable[[], torch.Tensor]] = {
    "some": lambda: torch.randn(ROWS, COLUMNS),
    "others": lambda: torch.randn(ROWS, COLUMNS),
    "none": lambda: -torch.rand(ROWS, COLUMNS) - 0.1,
    "all": lambda: torch.rand(ROWS, COLUMNS) + 0.1,
    "one": lambda: torch.where(torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) == 8, 0.7, -1.0),
    "many again": lambda: torch.randn(ROWS, COLUMNS) + 0.5,
}


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for one in value for t in tensors(one)] if isinstance(value, tuple) else []


def gradient(value: Any, x: torch.Tensor) -> torch.Tensor | None:
    total = sum(t.square().sum() for t in tensors(value) if t.requires_grad)
    return torch.autograd.grad(total, x)[0] if isinstance(total, torch.Tensor) else None


def same_as_eager(fn: Callable[..., Any], made: Callable[..., Any], grad: bool) -> None:
    for make in MASKS.values():
        x = make()
        mine, other = x.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
        found, wanted = made(mine), fn(other)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(tensors(found), tensors(wanted), strict=True):
            assert ours.stride() == theirs.stride() and ours.requires_grad is theirs.requires_grad
        torch.testing.assert_close(
            gradient(found, mine), gradient(wanted, other), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_one_graph_and_eagers_results(
    program: Callable[..., Any], backend: str, grad: bool
) -> None:
    torch.manual_seed(0)
    made = jitmagic.jit(program, backend=backend, fullgraph=True)
    same_as_eager(program, made, grad)
