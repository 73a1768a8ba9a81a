"""Floats made integers and floats again: one value at a time, in vectors and in reductions."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

INSIDE = (-0.5, -0.0, 0.75, -1.5, 2.5, 100.0)
BEYOND = (torch.inf, -torch.inf, torch.nan, 3e9, -3e9, 2.0**70)
FORMS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "alone": lambda x, d: x.to(d).to(x.dtype),
    "first": lambda x, d: x.flatten()[0].to(d).to(x.dtype),
    "each": lambda x, d: torch.stack([v.to(d).to(x.dtype) for v in x.flatten()[:3]]),
    "after a sum": lambda x, d: x.sum(-1).to(d).to(x.dtype),
    "summed": lambda x, d: x.to(d).to(x.dtype).sum(-1),
    "strided": lambda x, d: x.t().to(d).to(x.dtype),
}


@covered(
    dtype=[torch.float32, torch.float64, torch.bfloat16],
    through=[torch.int32, torch.int64, torch.int16, torch.uint8],
    form=FORMS,
)
def test_there_and_back(dtype: torch.dtype, through: torch.dtype, form: str) -> None:
    """With what no integer holds, too: there processors differ, and eager is as its processor."""
    values = INSIDE + BEYOND if platform.machine() == "x86_64" else INSIDE

    def run(x: Tensor) -> Tensor:
        return FORMS[form](x, through)

    compiled = jitmagic.jit(run)
    for first in range(len(values)):
        turned = values[first:] + values[:first]
        x = torch.tensor(turned, dtype=dtype).view(-1, 1).expand(-1, 3).contiguous()
        have, want = compiled(x), run(x)
        assert torch.equal(have, want), (first, have, want)
        assert torch.equal(have.signbit(), want.signbit()), (first, have, want)


def of_legacy_classes(x: Tensor, n: int) -> list[Tensor]:
    rows = [[1, 2], [3, n]]
    made = [torch.IntTensor([n]), torch.FloatTensor(rows), torch.LongTensor((1, 2)), x * n]
    made += [torch.Tensor([1e10, n]), torch.Tensor((n, True)), torch.Tensor(x.numpy() + n)]
    made += [torch.Tensor(n, 3).zero_(), torch.Tensor(x.size()).zero_(), torch.Tensor(x) * 2]
    made += [torch.FloatTensor(), torch.Tensor(), torch.Tensor([])]
    return [*made, torch.DoubleTensor(n, 2).fill_(0.5), torch.BoolTensor([n > 2, False])]


def test_classes_of_tensors_by_dtype_make_tensors() -> None:
    compiled = jitmagic.jit(of_legacy_classes, fullgraph=True)
    for n in (2, 3, 4):
        have, want = compiled(torch.ones(2), n), of_legacy_classes(torch.ones(2), n)
        assert [one.dtype for one in have] == [one.dtype for one in want]
        assert all(map(torch.equal, have, want))


def by_ranges(x: Tensor) -> tuple[Tensor, ...]:
    made = x * 1
    made[range(2), range(1, 3)] = 0
    return made, x[range(2)], x[:, range(3, 0, -1)], torch.tensor(range(3)) + x[0, 0]


def test_ranges_are_the_numbers_in_them() -> None:
    compiled = jitmagic.jit(by_ranges, fullgraph=True)
    x = torch.arange(12.0).view(3, 4)
    assert all(map(torch.equal, compiled(x), by_ranges(x)))


def test_tensors_made_of_tensors_share_their_memory() -> None:
    compiled = jitmagic.jit(lambda x: torch.Tensor(x), fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    made = compiled(x)
    assert made.data_ptr() == x.data_ptr()
    assert torch.equal(torch.autograd.grad(made.sum(), x)[0], torch.ones(2))


def test_empty_selections_are_asked_about() -> None:
    """Whether all of nothing are positive is for eager to say."""

    def run(x: Tensor) -> Tensor:
        chosen = x[x > 1]
        return chosen * 2 if (chosen >= 0).all() else chosen

    compiled = jitmagic.jit(run)
    for x in (torch.arange(4.0), torch.zeros(4), -torch.arange(4.0)):
        assert torch.equal(compiled(x), run(x))
