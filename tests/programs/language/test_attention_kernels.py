"""Blocks of sdpa_kernel: the kernels that are chosen in a graph, and the state of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import jitmagic
from tests.programs.counts import Counts, counts_of

MATH, FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION


def attend(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q.sin(), q, is_causal=True)


def one(q: Tensor) -> Tensor:
    with sdpa_kernel(MATH):
        return attend(q) + 1


def nested(q: Tensor) -> Tensor:
    with sdpa_kernel([MATH, FLASH], set_priority=True):
        first = attend(q)
        with sdpa_kernel(backends=FLASH):
            second = attend(q)
        return first * second


def beside(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        first = attend(q)
    return first - 2 * attend(q)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backends = [MATH]

    def forward(self, q: Tensor) -> Tensor:
        with sdpa_kernel(self.backends):
            return attend(q)


def state() -> tuple[Any, ...]:
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    return *flags, torch._C._get_sdp_priority_order()


@pytest.mark.parametrize("options", [{}, {"backend": "eager"}, {"dynamic": True}])
@pytest.mark.parametrize("program", [one, nested, beside, Held()])
def test_block_is_part_of_the_graph(
    program: Callable[[Tensor], Tensor], options: dict[str, Any]
) -> None:
    fast, before = jitmagic.jit(program, fullgraph=True, **options), state()
    for length in (8, 5):
        q = torch.randn(2, 2, length, 16, requires_grad=True)
        torch.manual_seed(0)
        made, wanted = fast(q), program(q)
        torch.testing.assert_close(made, wanted)
        found = torch.autograd.grad(made.sum(), q)
        torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), q))
    assert state() == before


def products(program: Callable[[Tensor], Tensor]) -> int:
    (graphs,) = jitmagic.graphs(program)(torch.randn(2, 2, 8, 16))
    return graphs.joint.code.count("aten.bmm")


def test_kernels_are_those_of_the_block() -> None:
    """On the CPU, MATH is two products and a softmax, and the default is one fused kernel."""
    assert (products(one), products(nested), products(beside)) == (2, 0, 2)


class Called(TorchDispatchMode):
    """Lists the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(op._opname)
        return op(*args, **(kwargs or {}))


def test_captured_graph_runs_the_kernels_of_the_block() -> None:
    q = torch.randn(2, 2, 8, 16)
    (graphs,) = jitmagic.graphs(one)(q)
    with Called() as called:
        graphs.captured(q)
    assert called.names.count("bmm") == 2
    assert not any("flash" in name for name in called.names)


def test_changed_choice_compiles_again() -> None:
    module, q = Held(), torch.randn(2, 2, 8, 16)
    fast = jitmagic.jit(module)
    for backends in ([MATH], [FLASH], [FLASH, MATH]):
        module.backends = backends
        torch.testing.assert_close(fast(q), module(q))
    assert counts_of(fast).graphs == 3


def test_break_in_the_block_keeps_the_choice() -> None:
    def program(q: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        with sdpa_kernel(MATH):
            q = q * 2
            jitmagic.graph_break()
            return attend(q), state()

    before, q = state(), torch.randn(2, 2, 8, 16)
    (made, inside), (wanted, expected) = jitmagic.jit(program)(q), program(q)
    torch.testing.assert_close(made, wanted)
    assert inside == expected != before
    assert state() == before


def test_settings_read_in_a_block_are_those_of_the_block() -> None:
    def program(q: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        with sdpa_kernel(FLASH):
            return attend(q), state()

    q = torch.randn(2, 2, 8, 16)
    fast = jitmagic.jit(program)
    assert fast(q)[1] == program(q)[1]
    assert counts_of(fast).breaks


@pytest.mark.parametrize("backends", [3, [MATH, "math"]])
def test_bad_backends_raise_as_eager(backends: Any) -> None:
    def program(q: Tensor) -> Tensor:
        with sdpa_kernel(backends):
            return attend(q)

    q, errors = torch.randn(2, 2, 8, 16), []
    for run in (program, jitmagic.jit(program)):
        try:
            run(q)
            errors.append("none")
        except Exception as error:
            errors.append(f"{type(error)}: {error}")
    assert errors[0] == errors[1]


def test_members_are_constants() -> None:
    def program(q: Tensor, name: str = "MATH") -> Tensor:
        chosen = getattr(SDPBackend, name)
        return q * int(chosen) + len({chosen, SDPBackend.MATH}) + len(str(chosen))

    q = torch.randn(3)
    fast = jitmagic.jit(program)
    torch.testing.assert_close(fast(q), program(q))
    assert counts_of(fast) == Counts(1, 0, 1)
