"""Wrapper subclasses of torch.Tensor enter a graph as their inner tensors and leave it rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ...covering import covered
from ..counts import counts_of
from .classes import SEEN, Logged, Scaled, Slotted, TwoTensor, scaled, two
from .compared import BACKENDS, check

F = nn.functional
SIZES = 4, 7, 5, 9, 6
CLOSED_OVER, GLOBAL_WEIGHT = two(4, 4), scaled(5, 4)
Make = Callable[[int], Any]


def one(n: int) -> tuple[TwoTensor]:
    return (two(4, 4),)


def with_plain(n: int) -> tuple[TwoTensor, Tensor]:
    return two(4, 4), torch.randn(4, 4)


def plain(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(3, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(scaled(5, 4), requires_grad=False)
        self.scales = [two(5, 5), two(5, 5)]

    def forward(self, x: Tensor) -> Any:
        return F.linear(x, self.weight) @ self.scales[0], len(self.scales)


MODEL = Model()

# name -> program, its arguments
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {
    "arithmetic": (lambda x: (x * 2 + 1).relu(), one),
    "with a plain tensor": (lambda x, y: (x * y, y @ x, y + 1), with_plain),
    "views": (lambda x: x.view(-1).reshape(2, 8).t().contiguous() * x.shape[0], one),
    "a view as result": (lambda x: (x.t(), x[1:3]), one),
    "several results": (lambda x: x.split(2) + x.max(0), one),
    "concatenated": (lambda x, y: torch.cat([x, TwoTensor(y, y)]).softmax(-1), with_plain),
    "its class": (lambda x: x + 1 if isinstance(x, TwoTensor) else x - 1, one),
    "an inner tensor": (lambda x: (x.a * 2, (x + 1).b), one),
    "a method": (lambda x: x.get_elem_a() + (x * 2).get_elem_a(), one),
    "the argument as result": (lambda x: (x, [x, x * 1]), one),
    "written in place": (lambda x: x.mul_(2).add_(1), one),
    "a part written in place": (lambda x: (x[0].mul_(2), x.__setitem__(1, 1.0), x)[0], one),
    "written, then an inner tensor": (lambda x, y: (x.mul_(y), x.a + 1)[1], with_plain),
    "random numbers": (lambda x: torch.rand_like(x) + x, one),
    "in a list": (lambda xs: [x * 2 for x in xs], lambda n: ([two(2, 2), two(3, 3)],)),
    "wrappers of wrappers": (lambda x: x * 2 + 1, lambda n: (TwoTensor(two(2, 2), two(2, 2)),)),
    "closed over": (lambda x: x @ CLOSED_OVER, one),
    "quantised weight": (
        lambda x, w: F.linear(x, w).relu(),
        lambda n: (torch.randn(3, 4), scaled(5, 4)),
    ),
    "quantised global": (lambda x: F.linear(x, GLOBAL_WEIGHT), lambda n: (torch.randn(3, 4),)),
    "in a module": (MODEL, lambda n: (torch.randn(3, 4),)),
    "in a slot": (lambda x: x * 2 + 1, lambda n: (Slotted(torch.randn(3), 2.0),)),
    "made inside": (lambda a, b: TwoTensor(a, b * 2) * 2 + 1, plain),
    "made inside, inner tensor": (lambda a, b: (TwoTensor(a, b * 2) * 2).a, plain),
    "made inside, quantised": (
        lambda x, codes: F.linear(x, Scaled(codes, x.mean(), torch.float32)),
        lambda n: (torch.randn(3, 4), torch.randint(-9, 9, (5, 4), dtype=torch.int8)),
    ),
}  # fmt: skip


@covered(program=PROGRAMS, backend=BACKENDS)
def test_operations_on_wrappers_are_one_graph(program: str, backend: str) -> None:
    check(*PROGRAMS[program], backend)


def test_a_wrapper_of_arguments_alone_is_rebuilt_without_a_graph() -> None:
    check(lambda a, b: TwoTensor(a, b), plain, graphs=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_of_wrappers_vary_in_two_variants(backend: str) -> None:
    compiled = check(
        lambda x: (x * x.shape[0]).sum(1), lambda n: (two(SIZES[n], 4),), backend, len(SIZES)
    )
    assert counts_of(compiled).graphs == 2


def test_dispatch_runs_when_it_is_traced_and_not_in_calls() -> None:
    compiled = jitmagic.jit(lambda x: x.sin() + 1)
    compiled(Logged(torch.ones(3)))
    assert {"sin.default", "add.Tensor"} <= set(SEEN)
    SEEN.clear()
    result = compiled(Logged(torch.zeros(3)))
    assert (type(result), result.inner.tolist(), SEEN) == (Logged, [1.0, 1.0, 1.0], [])


def test_writes_count_as_versions_of_the_wrapper() -> None:
    x = two(3)
    jitmagic.jit(lambda x: x.add_(1).mul_(2))(x)
    assert x._version == 2
