"""Complex numbers in everyday programs: rotary embeddings, spectral layers, results that are views.

A result under another dtype than the tensor whose memory it shares (`z.real`, `view_as_complex(x)`)
is such a view in a compiled function too, with eager's gradient, and the graph stays whole.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

from ..counts import counts_of


def rotary(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys (batch, length, heads, width) turned as Llama turns them."""

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)

    return turned(q), turned(k)


def spectral(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    spectrum = torch.einsum("bi,io->bo", torch.fft.rfft(x), weight)
    return torch.fft.irfft(spectrum, n=x.size(-1)), spectrum.abs(), spectrum.angle()


def parts_of_a_result(x: Tensor) -> tuple[Tensor, ...]:
    spectrum = torch.fft.fft(x)
    return spectrum, spectrum.real, spectrum.imag[1:], torch.view_as_real(spectrum)


def parts_of_an_input(z: Tensor) -> tuple[Tensor, ...]:
    return z.real, z.imag[1:], torch.view_as_real(z), z * 2


def complex_input(x: Tensor) -> tuple[Tensor, ...]:
    return torch.view_as_complex(x), torch.view_as_complex(x[1:]).T, x * 2


def detached(x: Tensor) -> tuple[Tensor, ...]:
    return torch.view_as_complex(x).detach(), x * 2


def numbers(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.exp(-x.exp() + 0.1j * x)
    return z, (z - 0.3j) / (1 + 2j), (x * (0.7 - 0.1j)).imag, z * 0.1j


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


PROGRAMS: dict[str, tuple[Callable[..., tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]] = {
    "rotary": (
        rotary,
        lambda: (
            leaf(2, 3, 2, 4),
            leaf(2, 3, 2, 4),
            torch.polar(torch.ones(3, 2), torch.rand(3, 2)),
        ),
    ),
    "rotary, learned": (
        rotary,
        lambda: (leaf(1, 3, 2, 4), leaf(1, 3, 2, 4), leaf(3, 2, dtype=torch.complex64)),
    ),
    "spectral": (spectral, lambda: (leaf(2, 8), leaf(5, 5, dtype=torch.complex64))),
    "parts of a result": (parts_of_a_result, lambda: (leaf(3, 8),)),
    "parts of an input": (parts_of_an_input, lambda: (leaf(4, 3, dtype=torch.complex64),)),
    "parts of an input, transposed": (
        parts_of_an_input,
        lambda: (torch.randn(4, 3, dtype=torch.complex64).mT.requires_grad_(),),
    ),
    "an input as complex": (complex_input, lambda: (leaf(4, 3, 2),)),
    "an input with an offset": (
        complex_input,
        lambda: (torch.randn(5, 3, 2)[1:].requires_grad_(),),
    ),
    "numbers": (numbers, lambda: (leaf(4, 3),)),
    "numbers and a scalar": (numbers, lambda: (leaf(),)),
    "numbers, double": (numbers, lambda: (leaf(4, 3, dtype=torch.float64),)),
    "numbers and a complex scalar": (numbers, lambda: (leaf(dtype=torch.complex128),)),
    "cut off": (detached, lambda: (leaf(4, 3, 2),)),
}


def _run(run: Callable[..., tuple[Tensor, ...]], make: Callable[[], Any]) -> dict[str, Any]:
    """Results, gradients, what results and inputs hold after the results were written to."""
    torch.manual_seed(3)
    inputs = make()
    results = run(*inputs)
    flat = [torch.view_as_real(t) if t.is_complex() else t for t in results]
    if torch.is_grad_enabled():
        sum((t * (i + 1)).square().sum() for i, t in enumerate(flat)).backward()
    before = [t.detach().clone() for t in results]
    with torch.no_grad():
        for t in results:
            t.mul_(3)
    return {
        "results": before,
        "facts": [(t.stride(), t.storage_offset(), t.requires_grad) for t in results],
        "gradients": [t.grad for t in inputs],
        "written": [t.detach() for t in (*results, *inputs)],
    }


@covered(name=PROGRAMS, grad=[False, True], backend=["native", "aot_eager"])
def test_as_eager_in_one_graph(name: str, grad: bool, backend: str) -> None:
    function, make = PROGRAMS[name]
    run = jitmagic.jit(function, backend=backend)
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        wanted = _run(function, make)
        for _ in range(2):
            got = _run(run, make)
            assert got.pop("facts") == wanted["facts"]
            for part, values in got.items():
                torch.testing.assert_close(values, wanted[part], msg=lambda m: f"{part}: {m}")  # noqa: B023
    assert counts_of(run).breaks == 0


def test_a_break_hands_complex_views_on() -> None:
    def program(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x)
        y = z * 2
        jitmagic.graph_break()
        return (y.real + z.imag).sum()

    x, y = (torch.arange(6.0).reshape(3, 2).requires_grad_() for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        got = jitmagic.jit(program)(x)
    got.backward()
    program(y).backward()
    torch.testing.assert_close((got, x.grad), (program(y), y.grad))


def test_integer_views_of_results() -> None:
    """Integers have no complex counterpart: asking torch for one raised an error of its own."""

    def bits(x: Tensor) -> tuple[Tensor, ...]:
        doubled = x * 2
        return doubled, doubled.view(torch.int32)

    x = torch.randn(4)
    run = jitmagic.jit(bits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        doubled, halves = run(x)
    assert all(map(torch.equal, (doubled, halves), bits(x)))
    assert halves.data_ptr() == doubled.data_ptr()
    assert counts_of(run).graphs == 1


@pytest.mark.parametrize(
    ("shape", "strides"), [((2, 1), (1, 2)), ((2, 3), (1, 4)), ((2, 1, 3), (1, 7, 2))]
)
def test_magnitudes_lie_as_eager_s(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Where an axis of one element leaves a choice, eager makes another than its meta function."""
    z = torch.arange(30).to(torch.complex64).as_strided(shape, strides)
    compiled = jitmagic.jit(lambda z: (z.abs(), z.real.abs(), z.imag.contiguous().abs()))
    eager = z.abs(), z.real.abs(), z.imag.contiguous().abs()
    assert [t.stride() for t in compiled(z)] == [t.stride() for t in eager]


PARTS = (math.nan, math.inf, -math.inf, 1.0)


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_complex_numbers_that_are_not_finite(backend: str) -> None:
    """The text of a graph that runs as Python has `nanj` and `infj` for their parts."""
    numbers = [complex(real, imag) for real in PARTS for imag in PARTS]

    def fn(x: Tensor) -> list[Tensor]:
        return [x * number for number in numbers]

    compiled = jitmagic.jit(fn, backend=backend, fullgraph=True)
    x = torch.tensor([1.0, -0.5, 2.0], requires_grad=True)
    for got, wanted in zip(compiled(x), fn(x), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
        (g,) = torch.autograd.grad(got.abs().sum(), x, retain_graph=True)
        (w,) = torch.autograd.grad(wanted.abs().sum(), x)
        torch.testing.assert_close(g, w, equal_nan=True)
