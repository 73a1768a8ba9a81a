"""Calls that eager refuses for a size that data decide, behind writes to inputs, attributes and
lists: eager's exception, and everything as eager leaves it, whichever call comes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic


class Box:
    """State that a program writes to besides its inputs."""

    def __init__(self) -> None:
        self.total, self.steps = torch.ones(4), 0


Body = Callable[[torch.Tensor, torch.Tensor, Box], Any]
GOOD, NEGATIVE, LARGE = [2, 1, 2, 3], [-2, 1, 200, 3], [7, 1, 0, 3]
ORDERS = ((GOOD, NEGATIVE, GOOD, LARGE), (LARGE, GOOD, NEGATIVE), (NEGATIVE, GOOD, LARGE))


def first(n: torch.Tensor) -> int:
    return int(n[0].item())


def apart(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    """A maker behind a write, and one before it."""
    index = torch.nonzero(x > 0).flatten()
    x.mul_(2)
    y = torch.repeat_interleave(x, n)
    x.add_(3)
    return y.sum(), index


def in_lists(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    made = []
    for count in n.tolist():
        x.add_(1)
        made.append(torch.arange(count))
        box.steps += 1
    return made


def put(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    x[n > 1] = torch.ones(3)
    return x * 2


def narrowed(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    x.narrow(0, 0, first(n))
    return x + 1


def unread(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    torch.zeros(first(n))
    return x + 1


def unread_view(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    x[n.abs() > 1].view(2, -1)
    return x + 1


def unread_sum(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    x[n.abs() > 1] + x[:3]
    return x + 1


def unread_count(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    torch.bincount(n)
    return x + 1


def attribute(x: torch.Tensor, n: torch.Tensor, box: Box) -> Any:
    box.total.add_(x)
    box.total = box.total * 2
    return torch.bincount(n) + 1


KINDS: dict[str, Body] = {
    **{f.__name__: f for f in (apart, in_lists, put, narrowed, attribute)},
    **{f.__name__: f for f in (unread, unread_view, unread_sum, unread_count)},
    "repeat_interleave": lambda x, n, box: torch.repeat_interleave(x, n) * 2,
    "repeat_interleave of indices": lambda x, n, box: torch.arange(4).repeat_interleave(n),
    "bincount": lambda x, n, box: torch.bincount(n) + 1,
    "index": lambda x, n, box: torch.nonzero(x > 0).flatten()[n],
    "zeros": lambda x, n, box: torch.zeros(first(n)) + 1,
    "arange": lambda x, n, box: torch.arange(first(n), n[3].item()),
    "split": lambda x, n, box: torch.cat([x, x]).split(n.tolist()),
    "slices": lambda x, n, box: (x[: first(n)] + 1, x[first(n) :] * 2),
    "topk": lambda x, n, box: torch.topk(x, first(n)),
    "pad": lambda x, n, box: F.pad(x, (0, first(n))),
    "view": lambda x, n, box: x[n.abs() > 1].view(2, -1),
    "reshape": lambda x, n, box: x[n.abs() > 1].reshape(3, 1),
    "sum": lambda x, n, box: x[n.abs() > 1] + x[:3],
    "matmul": lambda x, n, box: x[n.abs() > 1] @ torch.ones(3, 2),
    "expand": lambda x, n, box: x[n.abs() > 1].expand(3, 4) * 2,
    "max": lambda x, n, box: x[n > 5].max() * 2,
    "select": lambda x, n, box: x[n > 1][2] * 2,
    "stack": lambda x, n, box: torch.stack([x[n > 1], x[n < 3]]),
    "one_hot": lambda x, n, box: F.one_hot(n),
}


def program(kind: str) -> Callable[..., Any]:
    """The body behind a write to its input, one to an attribute and one to a list."""
    body = KINDS[kind]

    def run(x: torch.Tensor, n: torch.Tensor, box: Box, seen: list[Any]) -> Any:
        x.mul_(2.0)
        box.steps += 1
        seen.append(len(seen))
        made = body(x, n, box)
        seen.append("behind")
        return made

    return run


def outcome(run: Callable[..., Any], numbers: list[int]) -> str:
    x, n, box, seen = torch.tensor([1.0, -2, 3, 4]), torch.tensor(numbers), Box(), list[Any]()
    torch.manual_seed(1)
    try:
        made = str(run(x, n, box, seen))
    except Exception as error:
        made = f"{type(error).__name__}: {error}"
    return f"{made}; {x}; {n}; {box.total}; {box.steps}; {seen}; {torch.rand(1)}"


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # pieces that no size of the call goes with run op by op
def test_what_raises_leaves_all_as_eager_does(kind: str, backend: str) -> None:
    for order in ORDERS:
        compiled = jitmagic.jit(program(kind), backend=backend)
        for numbers in order:
            assert outcome(compiled, numbers) == outcome(program(kind), numbers)


def drawn_before(x: torch.Tensor, n: torch.Tensor, box: Box, seen: list[Any]) -> Any:
    noise = torch.rand(4)
    x.add_(noise)
    return torch.zeros(first(n)), torch.repeat_interleave(noise, n)


@pytest.mark.parametrize("order", [*itertools.permutations((GOOD, NEGATIVE, LARGE))])
def test_draws_before_it_are_those_of_eager(order: tuple[list[int], ...]) -> None:
    compiled = jitmagic.jit(drawn_before)
    for numbers in order:
        assert outcome(compiled, numbers) == outcome(drawn_before, numbers)
