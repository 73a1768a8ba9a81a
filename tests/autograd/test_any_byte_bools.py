"""Bools whose bytes are not 0 and 1, as `.view(torch.bool)` makes them: all but 0 are true.

What the program does not write keeps its bytes. New tensors are compared as bools: which byte
stands for true in those, eager's kernels do not agree on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic

BYTES = torch.tensor([[2, 3, 0, 1], [255, 128, 0, 7], [0, 4, 1, 9]], dtype=torch.uint8)
ROWS = torch.tensor([0, 2])
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda b: b.sum(),
    "sum of rows": lambda b: b.sum(1),
    "sum of columns": lambda b: b.sum(0, dtype=torch.int32),
    "any": lambda b: b.any(0),
    "all": lambda b: b.all(1),
    "largest": lambda b: b.amax(1),
    "smallest": lambda b: b.amin(0),
    "prod": lambda b: b.prod(1),
    "cumsum": lambda b: b.cumsum(0),
    "count_nonzero": lambda b: b.count_nonzero(1),
    "first": lambda b: b[0, 0] + 1,
    "transposed": lambda b: b.t() * 3,
    "strided": lambda b: b[:, ::3].float(),
    "gather": lambda b: b.gather(0, ROWS[:, None].expand(2, 4)) + 0.5,
    "index": lambda b: b[ROWS] * 2,
    "unfold": lambda b: b.unfold(1, 2, 1).sum(-1),
    "flipped": lambda b: b.flip(0) == b,
    "ordered": lambda b: b < b.flip(1),
    "xor": lambda b: b ^ b.flip(1),
    "not": lambda b: ~b,
    "condition": lambda b: torch.where(b, 1.5, -1.5),
    "values": lambda b: torch.where(b.flip(0), b, ~b),
    "masked": lambda b: torch.ones(3, 4).masked_fill(b, 7.0),
    "padded": lambda b: torch.nn.functional.pad(b, (1, 2)).sum(1),
    "joined": lambda b: torch.cat([b, b.flip(0)]).int(),
    "triangle": lambda b: b.tril().long(),
    "matmul": lambda b: b.float() @ b.float().t(),
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "item": lambda b: b.__setitem__((0, 1), False),
    "row": lambda b: b[1].zero_(),
    "column": lambda b: b[:, 2].fill_(True),
    "slice": lambda b: b[:2, 1:3].logical_not_(),
    "steps": lambda b: b[::2, ::3].copy_(torch.tensor(True)),
    "diagonal": lambda b: b.diagonal().zero_(),
    "two parts": lambda b: (b[0].zero_(), b[1:].logical_xor_(b[:2].clone())),
    "a part of a part": lambda b: b[1:][0][2:].fill_(True),
    "rows to rows": lambda b: b[0].copy_(b[1]),
    "in turn": lambda b: (b[0].copy_(b[1]), b[1].copy_(b[2]), b[2].copy_(b[0])),
    "turned": lambda b: b.t()[1].logical_not_(),
    "data": lambda b: b.data[1:, :1].fill_(True),
    "all": lambda b: b.logical_or_(b.flip(0)),
    "all, then a part": lambda b: (b.logical_not_(), b[0].zero_()),
    "a part, then all": lambda b: (b[0].zero_(), b.logical_not_()),
    "part of split": lambda b: b.split(1)[2].zero_(),
}
TIERS = {
    "aot_eager": {"backend": "aot_eager"},
    "cpp": {},
    "blocks": {"options": {"cpu_tier": "blocks"}},
    "numba": {"options": {"cpu_tier": "numba"}},
}


def odd() -> Tensor:
    return BYTES.clone().view(torch.bool)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", READERS)
def test_read(name: str, tier: str) -> None:
    read = READERS[name]
    torch.testing.assert_close(jitmagic.jit(read, **TIERS[tier])(odd()), read(odd()))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", WRITES)
def test_unwritten_bool_bytes_are_kept(name: str, tier: str) -> None:
    def run(b: Tensor) -> Tensor:
        WRITES[name](b)
        return b.sum(0)

    ours, eagers = odd(), odd()
    assert torch.equal(jitmagic.jit(run, **TIERS[tier])(ours), run(eagers))
    assert torch.equal(ours.view(torch.uint8), eagers.view(torch.uint8))
