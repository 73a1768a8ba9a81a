"""torch.set_default_dtype within tagged code is followed: what is made after it has eager's dtype
and values, and the process is left as eager leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of

Program = Callable[[Tensor, Tensor, float], Any]


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


# Of a float32 tensor, a tensor of int64 and a float.
FOLLOWED: dict[str, Program] = {
    "factories": lambda x, i, s: (torch.ones(2), torch.zeros(2, 2), torch.eye(2), torch.empty(0)),
    "filled": lambda x, i, s: (torch.full((2,), 0.1), torch.full((2,), 3), torch.full((2,), s)),
    "ranges": lambda x, i, s: (torch.arange(0.0, 1, 0.1), torch.arange(3), torch.linspace(0, 1, 7)),
    "literals": lambda x, i, s: (torch.tensor([0.1, 2]), torch.tensor(3), torch.tensor(s)),
    "complex literals": lambda x, i, s: (torch.tensor([1 + 0.1j]), torch.tensor(0.1j) * x),
    "draws": lambda x, i, s: (torch.rand(3), torch.randn(2), torch.randint(3, (2,))),
    "like": lambda x, i, s: (torch.ones_like(x), torch.zeros_like(i), x.new_ones(2)),
    "integers and a float": lambda x, i, s: (i * 0.1, 0.1 + i, i / 3, 1 / i, i**0.5, i - s, i * s),
    "integers and a complex": lambda x, i, s: i * 0.1j,
    "functions of integers": lambda x, i, s: (i.sqrt(), torch.sin(i), (i > 1) * 0.3, torch.exp(i)),
    "floats stay": lambda x, i, s: (x * 0.1, x + i, x / 3, x.sin(), x * s, torch.ones(1) * x),
    "asked": lambda x, i, s: (x + 1, torch.get_default_dtype(), torch.finfo().eps),
    "numpy": lambda x, i, s: (torch.from_numpy(np.ones(2)), torch.as_tensor(np.arange(3)) * 0.1),
    "legacy": lambda x, i, s: torch.Tensor([1.0, 2.0]),
    "compared": lambda x, i, s: torch.full((1,), 0.1) == torch.tensor(0.1, dtype=torch.float64),
    "branches": lambda x, i, s: x + 1 if torch.tensor(0.1).dtype is torch.float64 else x - 1,
    "modules": lambda x, i, s: torch.nn.functional.linear(x.to(torch.get_default_dtype()),
                                                          torch.ones(2, x.shape[-1])),
}  # fmt: skip
LEFT: dict[str, Program] = {
    "choice": lambda x, i, s: torch.where(i > 1, 0.1, 0.2),
    "sums": lambda x, i, s: torch.trapezoid(i),
}


def switched(program: Program, dtype: torch.dtype, back: bool) -> Program:
    def run(x: Tensor, i: Tensor, s: float) -> Any:
        before = program(x, i, s)
        torch.set_default_dtype(dtype)
        within = program(x, i, s)
        if back:
            torch.set_default_dtype(torch.float32)
        return before, within, program(x, i, s)

    return run


def check(made: Any, program: Any, *args: Any) -> None:
    outcomes = []
    for run in (made, program):
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(0)
        outcomes.append((tree_leaves(run(*args)), torch.get_default_dtype()))
    assert outcomes[0][1] is outcomes[1][1]
    for ours, wanted in zip(*(leaves for leaves, _ in outcomes), strict=True):
        if isinstance(wanted, Tensor):
            torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=0)
        else:
            assert ours == wanted


@pytest.mark.parametrize("back", [True, False], ids=["put back", "left"])
@pytest.mark.parametrize("name", [*FOLLOWED, *LEFT])
def test_results_and_state_are_as_eager(name: str, back: bool) -> None:
    program = switched((FOLLOWED | LEFT)[name], torch.float64, back)
    made = jitmagic.jit(program)
    for n in range(3):
        check(made, program, torch.rand(2, 3), torch.arange(1, 4), 0.1 + n)
    breaks = {b for record in handle_of(made).journal for b in breaks_of(record)}
    assert bool(breaks) == (name in LEFT), breaks


def breaks_of(record: Any) -> list[str]:
    exit = getattr(record.result("trace"), "exit", None)
    reason = getattr(exit, "reason", None)
    return [] if reason is None else [reason.message]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    program = switched(lambda x, i, s: (torch.ones(3), i / 3), dtype, True)
    check(jitmagic.jit(program), program, torch.rand(2), torch.arange(3), 1.0)


def test_it_is_left_where_the_program_raises() -> None:
    def program(x: Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        y = torch.ones(2) + x
        if x.shape[0] == 2:
            raise ValueError("after it")
        torch.set_default_dtype(torch.float32)
        return y

    made = jitmagic.jit(program)
    for n in (2, 1, 2):
        torch.set_default_dtype(torch.float32)
        if n == 2:
            with pytest.raises(ValueError, match="after it"):
                made(torch.ones(n))
            assert torch.get_default_dtype() is torch.float64
        else:
            check(made, program, torch.ones(n))


def test_it_is_put_back_in_finally() -> None:
    def program(x: Tensor) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            y = torch.ones(2) + x
            return y.view(3) if x.shape[0] == 2 else y
        finally:
            torch.set_default_dtype(before)

    made = jitmagic.jit(program)
    for n in (2, 1, 2, 1):
        if n == 2:
            with pytest.raises(RuntimeError, match="invalid for input of size 2"):
                made(torch.ones(n))
        else:
            check(made, program, torch.ones(n))
        assert torch.get_default_dtype() is torch.float32


def test_a_break_within_sees_it() -> None:
    seen = []

    @jitmagic.disable
    def note() -> None:
        seen.append(torch.get_default_dtype())

    def program(x: Tensor) -> Any:
        torch.set_default_dtype(torch.float64)
        y = torch.ones(2)
        note()
        z = torch.ones(2) * 0.1
        torch.set_default_dtype(torch.float32)
        return x + y, z, torch.ones(1)

    made = jitmagic.jit(program)
    for _ in range(3):
        check(made, program, torch.ones(2))
    assert set(seen) == {torch.float64}


def test_changes_between_calls_are_variants() -> None:
    def program(i: Tensor) -> Any:
        return torch.ones(2), i * 0.1

    made = jitmagic.jit(program)
    for dtype in (torch.float32, torch.float64, torch.float32, torch.float16, torch.float64):
        torch.set_default_dtype(dtype)
        for ours, wanted in zip(made(torch.arange(2)), program(torch.arange(2)), strict=True):
            torch.testing.assert_close(ours, wanted)
    assert len(handle_of(made).journal) == 3


class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (g * torch.full((1,), 0.1)).to(g.dtype)


@pytest.mark.parametrize("inside", [True, False])
def test_backwards_of_the_programs_own(inside: bool) -> None:
    def program(x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        torch.set_default_dtype(torch.float64)
        y = Ones.apply(x).sum() * torch.ones(1)
        if inside:
            y.sum().backward()
        torch.set_default_dtype(torch.float32)
        if not inside:
            y.sum().backward()
        return y, x.grad

    check(jitmagic.jit(program), program, torch.rand(3, dtype=torch.float64))


def test_with_device_around_factories() -> None:
    def program(x: Tensor) -> Any:
        with torch.device("cpu"):
            torch.set_default_dtype(torch.float64)
            y = torch.ones(3) * x
            torch.set_default_dtype(torch.float32)
            return y, torch.ones(3)

    made = jitmagic.jit(program)
    check(made, program, torch.rand(3))
    assert len(handle_of(made).journal) == 1
