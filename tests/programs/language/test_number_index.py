"""Indexing `x[i]` by a 0-dim integer tensor is one graph if the copy cannot be told from a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

from ..counts import counts_of

WHOLE: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "one": lambda x, i, j: x[i] * 2,
    "several": lambda x, i, j: x[i, j] + x[:, j].sum(0) + x[..., i % 3].sum(),
    "among other parts": lambda x, i, j: x[i, :, 1] + x[None, i, ..., -1].mean() + x[1, :, i % 3],
    "negative": lambda x, i, j: x[-i - 1].sum() + x[(i - 5).int()].mean(),
    "beside a list": lambda x, i, j: x[i, torch.tensor([0, 2])] + x[:2, i],
    "of a part": lambda x, i, j: x[i][j][i % 3] * 1,
    "of what was computed": lambda x, i, j: torch.stack([(x * 2)[k] for k in (i, j)]).sum(0),
    "of a column": lambda x, i, j: x[0].mT[:, j % 4] * 2,
    "of a row": lambda x, i, j: x[i, j] * (2 if x[i, j].is_contiguous() else 3),
    "of a spectrum": lambda x, i, j: (
        torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1).mean(2)[:, j] * 2
    ),
    "a walk": lambda x, i, j: walk(x, i, 4),
}
READ_BEFORE: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "a count": lambda y, i, j: add(y, (i, j, 0), 1),
    "a row": lambda y, i, j: add(y, i, y[j % 5].mean()),
    "a part of a row": lambda y, i, j: add(y, (i, slice(1, None, 2)), y[i, :2] * 0 + 2),
    "a column": lambda y, i, j: add(y, (slice(None), j), torch.arange(3.0)),
    "several": lambda y, i, j: [add(y, (k, k % 4), k) for k in (i, i - 1, i)],
    "one behind the other": lambda y, i, j: [add(y, i, 1), add(y, (slice(None), j), y[i].sum())],
    "read, then written": lambda y, i, j: y.copy_(y[i].exp() + 1),
    "a count of pairs": lambda y, i, j: [
        add(y, (a, b), 1) for a, b in zip(torch.stack([i, j]), torch.stack([j, j]), strict=True)
    ],
}
BROKEN: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "handed out": lambda x, i, j: x[i],
    "a view of it handed out": lambda x, i, j: (x + 1, x[i, j].view(-1)),
    "written": lambda x, i, j: (x[i].add_(1), x.sum()),
    "the tensor written": lambda x, i, j: [x[i], x.mul_(2)][0] + 1,
    "of columns": lambda x, i, j: x.mT[i] * 2,
    "asked how it lies": lambda x, i, j: x[:, i] * (2 if x[:, i].is_contiguous() else 3),
    "a number of bools": lambda x, i, j: x[i > 1].sum(),
}


def add(y: Tensor, key: Any, value: Any) -> None:
    y[key] += value


def kept(y: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Read a part after a write to it."""
    part = y[i]
    y[i] += 1
    return part * 2


def kept_and_written(y: Tensor, i: Tensor, j: Tensor) -> Tensor:
    part = y[i]
    part += 1
    return y.sum() + part


def moved(y: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Change the index before the part is assigned."""
    at = i.clone()
    y[at] += at.add_(1)
    return y * 1


def read_between(y: Tensor, i: Tensor, j: Tensor) -> Tensor:
    part = y[i]
    part.mul_(2)
    y[i] = part + y.sum()
    return y * 1


def changed(write: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[..., Any]:
    """Return a tensor of the program after an assignment to a part of it."""

    def program(x: Tensor, i: Tensor, j: Tensor) -> Any:
        y = x * 1
        write(y, i, j)
        return y * 2

    return program


ASSIGNED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "a number": lambda y, i, j: y.__setitem__(i, 3),
    "a place": lambda y, i, j: y.__setitem__((i, j, 0), True),
    "a row of itself": lambda y, i, j: y.__setitem__(i, y[0]),
    "a column": lambda y, i, j: y.__setitem__((slice(None), j), y[:, 0] + 1),
    "a part of a column": lambda y, i, j: y.__setitem__((slice(1, 4, 2), j), 7),
    "ints among them": lambda y, i, j: y.__setitem__((..., i % 3), torch.arange(4)),
    "new dimensions": lambda y, i, j: y.__setitem__((None, i, ..., j % 3), -1.5),
    "where it is least": lambda y, i, j: y.__setitem__(y[:, 0, 0].argmin(), y[1].detach()),
    "one after the other": lambda y, i, j: [y.__setitem__((k, j), y[0, 1]) for k in (i, i - 1)],
}
WHOLE |= {name: changed(write) for name, write in ASSIGNED.items()}
WITHOUT_GRADIENTS = {f"{name}, augmented": changed(w) for name, w in READ_BEFORE.items()}
BROKEN |= {
    one.__name__: lambda x, i, j, one=one: one(x * 1, i, j)  # type: ignore[misc]
    for one in (kept, kept_and_written, moved, read_between)
}


def walk(table: Tensor, state: Tensor, steps: int) -> Tensor:
    """Walk through an environment that is a table."""
    total, places = torch.zeros(()), (table[..., 0] * 100).long().remainder(5)
    for step in range(steps):
        total = total + 0.9**step * table[state, step % 4].sum()
        state = places[state, step % 4]
    return total + state


def seen(fn: Callable[..., Any], seed: int, differentiated: bool) -> list[Any]:
    x = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(seed))
    leaf = x.clone().requires_grad_(differentiated)
    result = fn(leaf, torch.tensor(2 + seed), torch.tensor(3 - seed))
    parts = list(result) if isinstance(result, tuple) else [result]
    if differentiated:
        parts += torch.autograd.grad(parts[-1].sum(), leaf)
    return [*(part.detach() for part in parts), leaf.detach()]


@covered(name=WHOLE, differentiated=[False, True], backend=["eager", "native"])
def test_one_graph(name: str, differentiated: bool, backend: str) -> None:
    program = WHOLE[name]
    tagged = jitmagic.jit(program, backend=backend, fullgraph=True)
    for seed in (0, 1, 0):
        wanted = seen(program, seed, differentiated)
        for got, want in zip(seen(tagged, seed, differentiated), wanted, strict=True):
            torch.testing.assert_close(got, want, check_stride=True)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_augmented_assignment_is_in_the_graph(name: str, backend: str) -> None:
    program = WITHOUT_GRADIENTS[name]
    tagged = jitmagic.jit(program, backend=backend, fullgraph=True)
    for seed in (0, 1, 0):
        got, want = seen(tagged, seed, False), seen(program, seed, False)
        torch.testing.assert_close(got, want, check_stride=True)


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_gradients_equal_eager(name: str) -> None:
    program = WITHOUT_GRADIENTS[name]
    tagged = jitmagic.jit(program, backend="eager")
    for seed in (0, 1):
        got, want = seen(tagged, seed, True), seen(program, seed, True)
        torch.testing.assert_close(got, want, check_stride=True)


@pytest.mark.parametrize("name", BROKEN)
def test_view_that_is_observed_is_a_graph_break(name: str) -> None:
    program = BROKEN[name]
    tagged = jitmagic.jit(program, backend="eager")
    for seed in (0, 1, 0):
        wanted = seen(program, seed, False)
        for got, want in zip(seen(tagged, seed, False), wanted, strict=True):
            torch.testing.assert_close(got, want, check_stride=True)
    assert counts_of(tagged).breaks > 0


def test_returned_part_is_a_view() -> None:
    x = torch.zeros(3, 2)
    part = jitmagic.jit(BROKEN["handed out"], backend="eager")(x, torch.tensor(1), torch.tensor(0))
    part += 1
    assert x.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", ["several", "a place", "a column"])
def test_out_of_range_raises_as_in_eager(name: str, backend: str) -> None:
    program = WHOLE[name]
    tagged = jitmagic.jit(program, backend=backend)
    for i, j in ((1, 2), (7, 2), (1, -5), (-5, -4)):
        answers = []
        for fn in (program, tagged):
            try:
                answers.append(str(fn(torch.ones(5, 4, 3), torch.tensor(i), torch.tensor(j))))
            except IndexError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
    assert counts_of(tagged).breaks == 0
