"""flex_attention on a GPU: results and gradients against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitmagic
from tests.codegen.flex_attention_programs import Program, exact, programs
from tests.programs.counts import counts_of

pytestmark = pytest.mark.device
NAMES = list(programs("cpu"))


@pytest.fixture(scope="module")
def known() -> dict[str, Program]:
    return programs("cuda")


def compare(
    run: Callable[..., Any], program: Program, given: list[Tensor], tolerance: float
) -> None:
    """Compare output, logsumexp and gradients."""
    given = [x.detach().requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    (out, lse), (wanted, wanted_lse) = run(*given), exact(program, *wide)
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-4, rtol=1e-4)
    finite = wanted_lse.isfinite()
    tangents = torch.randn_like(out), torch.randn_like(lse).masked_fill(~finite, 0.0)
    found = torch.autograd.grad([out, lse], given, tangents)
    results = [wanted, wanted_lse.masked_fill(~finite, 0.0)]
    expected = torch.autograd.grad(results, wide, [t.double() for t in tangents])
    for made, value in zip(found, expected, strict=True):
        limit = tolerance * value.abs().max().clamp(1).item()
        torch.testing.assert_close(made.double(), value, atol=limit, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_and_gradients(name: str, dtype: torch.dtype, known: dict[str, Program]) -> None:
    program = known[name]
    fast = jitmagic.jit(program.function(), fullgraph=True)
    compare(fast, program, program.tensors(dtype), 4 * torch.finfo(dtype).eps + 1e-5)
    assert counts_of(fast).breaks == 0


@pytest.mark.parametrize("name", ["causal with slopes", "capped", "grouped heads", "odd lengths"])
@pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}])
def test_modes(name: str, options: dict[str, Any], known: dict[str, Program]) -> None:
    program = known[name]
    fast = jitmagic.jit(program.function(), fullgraph=True, **options)
    for _ in range(3):
        compare(fast, program, program.tensors(torch.bfloat16), 0.04)


@pytest.mark.parametrize("width", [64, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences(width: int, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        slopes = torch.linspace(0.01, 0.1, 4)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + slopes[h] * (j - i)

    program = Program(
        score, lambda b, h, i, j: i >= j, 128, lengths=(1000, 1000), widths=(width, width),
        heads=(4, 2), device="cuda",
    )  # fmt: skip
    fast = jitmagic.jit(program.function(), fullgraph=True)
    compare(fast, program, program.tensors(dtype), 0.04 if dtype is torch.bfloat16 else 2e-5)


def test_lengths_that_vary() -> None:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(s / 2) * 2 + (j - i) * 0.01

    fast = jitmagic.jit(lambda q, k, v: flex_attention(q, k, v, score, return_lse=True))
    for length in (64, 96, 100, 333):
        program = Program(score, lengths=(length, length), device="cuda")
        compare(fast, program, program.tensors(torch.float32), 2e-5)


def test_memory_is_linear_in_the_length() -> None:
    length, mask = 1 << 15, None
    mask = create_block_mask(
        lambda b, h, i, j: i - j < 256, None, None, length, length, device="cuda", _compile=True
    )
    given = [
        torch.randn(1, 2, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    fast = jitmagic.jit(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), fullgraph=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(fast(*given).sum(), given)
    used = torch.cuda.max_memory_allocated() - before
    assert used < 40 * given[0].nbytes  # the score matrix would be 1,024 times as large


def test_gradient_of_a_gradient(known: dict[str, Program]) -> None:
    program = known["capped"]
    given = [x.requires_grad_() for x in program.tensors()]
    wide = [x.detach().double().requires_grad_() for x in given]
    fast = jitmagic.jit(program.function())
    second = []
    for run, inputs in ((fast, given), (lambda *x: exact(program, *x), wide)):
        first = torch.autograd.grad(run(*inputs)[0].square().sum(), inputs, create_graph=True)
        second.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for made, value in zip(*second, strict=True):
        limit = 1e-4 * value.abs().max().item()
        torch.testing.assert_close(made.double(), value, atol=limit, rtol=1e-3)


def test_gradient_of_a_captured_tensor(known: dict[str, Program]) -> None:
    given = known["plain"].tensors()
    bias = torch.randn(2, 64, 64, device="cuda", requires_grad=True)

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h, i, j])

    made = jitmagic.jit(program)(*given, bias)
    scores = given[0] @ given[1].transpose(-2, -1) * 16**-0.5 + bias
    wanted = torch.softmax(scores, -1) @ given[2]
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)
    tangent = torch.randn_like(made)
    found, expected = (torch.autograd.grad(x, bias, tangent) for x in (made, wanted))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
