"""Operands of every dtype and layout keep symbolic sizes: one variant, and eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.loops.ir import Extern

SIZES = (5, 7, 6, 11, 2)
Program = tuple[Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]


def _numbers(n: int) -> tuple[Tensor]:
    return (torch.randn(n, 3),)


def _ints(n: int) -> tuple[Tensor]:
    return (torch.randint(0, 5, (n, 3)),)


def _mask(n: int) -> tuple[Tensor]:
    return (torch.rand(n, 4) > 0.5,)


def _padding_mask(mask: Tensor) -> Tensor:
    """Build the mask per query from a token mask, as models do."""
    b, n = mask.shape
    batch, keys = torch.arange(b)[:, None, None, None], torch.arange(n)[None, None, None, :]
    return mask[batch, keys] & (keys <= torch.arange(n)[None, None, :, None])


PROGRAMS: dict[str, Program] = {
    "and, or, not": (lambda m: (m & ~m.flip(1)) | (m == 0), _mask),
    "ints": (lambda x: x - x // 2 + (x % 3) * (x << 1), _ints),
    "mixed": (lambda x: (x > 1) * 2 + x.float() * (x == 2), _ints),
    "padding mask": (_padding_mask, _mask),
    "position ids": (lambda m: m.cumsum(-1).sub(1).masked_fill(m == 0, 1), _mask),
    "where": (lambda x: torch.where(x > 2, x, 0), _ints),
    "in place": (lambda x: F.hardswish(F.relu6(x.clone(), inplace=True), inplace=True), _numbers),
    "no rule": (lambda x: torch.lerp(x, x * 2, 0.3) + torch.special.entr(x.abs()), _numbers),
    "strides": (lambda x: torch.special.entr(x.t().abs()) + torch.logit(x.t(), 1e-3), _numbers),
    "pad of a view": (lambda x: F.pad(x[:, 1:], [0, 0, 0, 1]) * 2, _numbers),
    "pad of bools": (lambda m: F.pad(m, (1, 2), value=True), _mask),
    "pad of images": (lambda x: F.pad(x.view(-1, 1, 3, 1).transpose(1, 2), (0, 1, 1, 0)), _numbers),
    "pad by a size": (lambda x: F.pad(x.t(), (0, -x.shape[0] % 4, 0, 1)), _numbers),
    "shape and more": (
        lambda x: x.view(x.size()[:-1] + (3, -1)).view((1,) + x.shape) * 2,
        _numbers,
    ),
    "rows of expanded ids": (
        lambda m: torch.arange(4).expand(m.shape)[torch.arange(len(m))[:, None], m.long()],
        _mask,
    ),
    "stack of bools": (lambda x: torch.stack([x > 1, x > 2]).any(0), _ints),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_variant_serves_all_sizes(name: str, backend: str) -> None:
    fn, make = PROGRAMS[name]
    made = jitmagic.jit(fn, dynamic=True, backend=backend, options={"keep": "compiled"})
    for n in SIZES:
        torch.manual_seed(n)
        found, wanted = made(*(inputs := make(n))), fn(*inputs)
        assert (found.stride(), found.dtype) == (wanted.stride(), wanted.dtype)
        torch.testing.assert_close(found, wanted)
    traces = [r.result("trace") for r in handle_of(made).journal if r.occasion.at]
    assert [trace.specialized for trace in traces][1:] in ([], [()])  # sizes that are equal once


def _small(n: int) -> tuple[Tensor]:
    return (torch.randint(-50, 50, (n, 3)),)


def _doubles(n: int) -> tuple[Tensor]:
    return (torch.randn(n, 3, dtype=torch.float64),)


BESIDE_SIZES: dict[str, Program] = {
    "sums": (lambda x: x + x.shape[0] - x.shape[1], _numbers),
    "a factor of it": (lambda x: torch.add(x, x, alpha=len(x)), _numbers),
    "less a multiple": (lambda x: torch.sub(x, x, alpha=len(x)), _small),
    "a quotient": (lambda x: x / len(x), _numbers),
    "a quotient of ints": (lambda x: x / len(x), _small),
    "doubles": (lambda x: len(x) / (x * x + len(x)), _doubles),
    "a root": (lambda x: x / len(x) ** 0.5, _numbers),
    "rows and columns": (lambda x: (x // len(x)) * 100 + x % len(x), _small),
    "a remainder as in C": (lambda x: x.fmod(len(x)), _small),
    "rounded to 16 bits": (lambda x: x.half() * len(x) + (x.bfloat16() - len(x)), _numbers),
    "compared": (lambda x: (x == len(x)) | (x > len(x) - 2), _small),
    "chosen": (lambda x: torch.where(x > 0, x, len(x)).masked_fill(x < -9, len(x)), _small),
    "limits": (lambda x: x.clamp(-len(x), len(x) - 1), _small),
    "deviations": (lambda x: (x.std(0), x.var(0, unbiased=False), x.std()), _numbers),
    "its share": (
        lambda x: torch.autograd.grad((y := x.clone().requires_grad_()).mean(), y),
        _numbers,
    ),
}


@pytest.mark.parametrize("name", BESIDE_SIZES)
def test_a_size_among_operands_is_computed_with_in_the_kernel(name: str) -> None:
    """Not by a call of ATen, between two kernels."""
    fn, make = BESIDE_SIZES[name]
    made = jitmagic.jit(fn, dynamic=True)
    for n in SIZES:
        torch.manual_seed(n)
        torch.testing.assert_close(made(*(inputs := make(n))), fn(*inputs))
    lowered = [r.result("forward: lower") for r in handle_of(made).journal]
    steps = [step for program in lowered if program is not None for step in program.steps]
    assert steps and not [step for step in steps if isinstance(step, Extern)]


@pytest.mark.parametrize("n", [5, 7, 300])
def test_a_size_that_a_dtype_cannot_hold_is_eagers(n: int) -> None:
    fn = lambda x: (x.to(torch.uint8) + len(x), x.to(torch.uint8) // len(x))  # noqa: E731
    made = jitmagic.jit(fn, dynamic=True)
    made(*_ints(4))
    inputs = _ints(n)
    try:
        wanted = fn(*inputs)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            made(*inputs)
    else:
        torch.testing.assert_close(made(*inputs), wanted, rtol=0, atol=0)


REJECTED: dict[str, Callable[[Tensor], Any]] = {
    "a float in and": lambda x: x & 1.5,
    "not of floats": lambda x: ~x.float(),
    "a difference of bools": lambda x: x.bool() - x.bool(),
    "shapes": lambda x: x & x[:, :2],
}


@pytest.mark.parametrize("fn", REJECTED.values(), ids=REJECTED)
def test_what_eager_rejects_raises_as_eager_does(fn: Callable[[Tensor], Any]) -> None:
    x = torch.ones(5, 3, dtype=torch.int64)
    with pytest.raises(Exception) as wanted:
        fn(x)
    with pytest.raises(type(wanted.value), match=r"\w"):
        jitmagic.jit(fn, dynamic=True)(x)


def test_shapes_that_are_joined_are_of_eagers_class() -> None:
    def parts(x: Tensor) -> tuple[Any, ...]:
        s = x.shape[:-1]
        return s + (4, 1), (7,) + s, torch.Size((1, 2)) + s, s + x.size(), s * 2, s + (True,)

    made = jitmagic.jit(parts, dynamic=True)
    for n in SIZES:
        found, wanted = made(x := torch.randn(n, 3, 2)), parts(x)
        assert found == wanted
        assert [type(shape) for shape in found] == [type(shape) for shape in wanted]
        assert [[type(k) for k in shape] for shape in found] == [
            [type(k) for k in shape] for shape in wanted
        ]
