"""Strides of dimensions of size 0 and 1 address no element, but programs read them, and later
kernels choose their layout by them. They equal those of eager, which depend on the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

import jitmagic

OPERATORS: tuple[Callable[..., Any], ...] = (
    lambda a, b, m: (-a, a.abs(), a.exp(), F.gelu(a), F.hardtanh(a), F.threshold(a, 1, 2)),
    lambda a, b, m: (F.relu6(a), F.hardshrink(a), F.elu(a), F.logsigmoid(a), a.nan_to_num(1.0)),
    lambda a, b, m: (a + b, a * b, torch.maximum(a, b), a < b, torch.atan2(a, b), a**b, a % b),
    lambda a, b, m: (a + 1, 1 - a, a / 2, 1 / a, a < 1, a // 2, a**2, 2**a, torch.fmod(a, 2)),
    lambda a, b, m: (a.clamp(1, 2), torch.clamp(a, b, b), torch.lerp(a, b, 0.3), a.lerp(b, b)),
    lambda a, b, m: (torch.where(m, a, b), torch.where(m, a, 1.0), torch.where(m, 0, b)),
    lambda a, b, m: (a.masked_fill(m, 1), a.double(), a.clone(), a.long() // 2, a.isfinite()),
    lambda a, b, m: (torch.addcmul(a, b, b), torch.zeros_like(a), torch.full_like(a, 3)),
    lambda a, b, m: (torch._foreach_add([a, b], 1), torch._foreach_mul([a, b], [b, a])),
    lambda a, b, m: (torch.mul(a, 2, out=torch.empty(0)), (a * 2 + b).exp(), ((a + 1) < b) * 2.0),
    lambda a, b, m: (F.huber_loss(a, b, reduction="none"), F.l1_loss(a, b, reduction="none")),
    lambda a, b, m: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
    lambda a, b, m: (a.flip(0), a.roll(1, 0), a.sort(0), a.tril(), torch.stack([a, b])),
    lambda a, b, m: ((a + 1).stride(), F.hardtanh(a).stride()),  # as the program sees them
)

LAYOUTS = {
    "a channels_last pixel": ((2, 3, 1, 1), (3, 1, 3, 3)),
    "a row that is a column": ((1, 3), (1, 1)),
    "gaps": ((2, 1, 4), (4, 0, 1)),
    "wide": ((1, 1, 1, 1), (8, 8, 4, 2)),
    "channels_last of one channel": ((2, 1, 3, 4), (12, 1, 4, 1)),
    "transposed": ((2, 1, 4), (1, 7, 2)),
    "nothing": ((2, 3, 0, 5), (60, 20, 20, 1)),
    "nothing of one": ((1, 0, 1), (1, 1, 1)),
    "no columns": ((2, 0), (1, 2)),
}


def _of(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[Tensor, ...]:
    a = torch.arange(1.0, 200).as_strided(shape, stride)
    b = torch.arange(2.0, 200).sqrt().as_strided(shape, stride)
    return a, b, (a > 2).contiguous()


def _seen(made: Any) -> list[Any]:
    return [
        (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf
        for leaf in tree_leaves(made)
    ]


def _check(inputs: tuple[Tensor, ...], **options: Any) -> None:
    taken = []
    for operator in OPERATORS:
        try:
            operator(*inputs)
        except (RuntimeError, IndexError):  # no rows to sort, no matrix
            continue
        taken.append(operator)
    assert len(taken) > 10
    names = {f"call_{n}": operator for n, operator in enumerate(taken)}
    exec(f"def program(a, b, m): return [{', '.join(f'{n}(a, b, m)' for n in names)}]", names)
    program: Any = names["program"]
    eager, ours = program(*inputs), jitmagic.jit(program, **options)(*inputs)
    assert _seen(ours) == _seen(eager)
    for got, wanted in zip(tree_leaves(ours), tree_leaves(eager), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_equal_eager(layout: str) -> None:
    _check(_of(*LAYOUTS[layout]), backend="aot_eager")


@pytest.mark.parametrize("layout", ["a channels_last pixel", "transposed", "nothing of one"])
def test_strides_of_kernels_equal_eager(layout: str) -> None:
    _check(_of(*LAYOUTS[layout]))


def test_a_gpu_in_the_machine_changes_no_strides_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _check(_of(*LAYOUTS["a channels_last pixel"]), backend="aot_eager")


@pytest.mark.parametrize("layout", ["a channels_last pixel", "gaps"])
def test_strides_of_a_gradient(layout: str) -> None:
    def program(a: Tensor) -> Any:
        (gradient,) = torch.autograd.grad((F.hardtanh(a) * 3).sum(), a)
        return gradient, F.gelu(gradient)

    a = _of(*LAYOUTS[layout])[0].requires_grad_()
    assert _seen(jitmagic.jit(program, backend="aot_eager")(a)) == _seen(program(a))


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_strides_of_pooling(backend: str) -> None:
    def program(x: Tensor) -> Any:
        mean = F.adaptive_avg_pool2d(x, 1)
        return mean, mean.relu(), mean + 1, F.adaptive_max_pool2d(x, 1), F.avg_pool2d(x, 4)

    for x in (torch.randn(2, 3, 4, 4), torch.randn(2, 1, 4, 4)):
        for image in (x, x.to(memory_format=torch.channels_last)):
            ours = jitmagic.jit(program, backend=backend)(image)
            assert _seen(ours) == _seen(program(image))


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_stacked_images_keep_their_strides(backend: str) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [torch.stack([x, y], dim) * 2 for dim in range(5)]

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for y in (x + 1, (x + 1).contiguous()):
        eager, ours = program(x, y), jitmagic.jit(program, backend=backend)(x, y)
        assert _seen(ours) == _seen(eager)
        assert all(map(torch.equal, ours, eager))
