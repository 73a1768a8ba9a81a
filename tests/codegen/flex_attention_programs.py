"""Programs with flex_attention, their functions written so that they also run on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

__all__ = ["Program", "exact", "programs"]

HEADS, LENGTH = 2, 64

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Program:
    """A call: its functions and sizes. `block`: the block size; None: no block mask is made."""

    score: Function | None = None
    mask: Function | None = None
    block: int | tuple[int, int] | None = 32
    scale: float | None = None
    heads: tuple[int, int] = (HEADS, HEADS)
    lengths: tuple[int, int] = (LENGTH, LENGTH)
    widths: tuple[int, int] = (16, 16)
    by_head: bool = False
    is_turned: bool = False  # whether heads are after positions in memory
    device: str = "cpu"

    def block_mask(self) -> BlockMask | None:
        if self.mask is None:
            return None
        batch, heads = (2, self.heads[0]) if self.by_head else (None, None)
        if self.block is None:
            whole = torch.ones(1, 1, 1, dtype=torch.int32, device=self.device)
            blocks = whole, whole[..., None] - 1
            return BlockMask.from_kv_blocks(
                *blocks, BLOCK_SIZE=1 << 30, mask_mod=self.mask, seq_lengths=self.lengths
            )
        return create_block_mask(
            self.mask, batch, heads, *self.lengths, device=self.device, BLOCK_SIZE=self.block
        )

    def tensors(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        torch.manual_seed(0)
        (rows, keys), (width, of_value) = self.lengths, self.widths
        shapes = [(self.heads[0], rows, width), (self.heads[1], keys, width)]
        shapes.append((self.heads[1], keys, of_value))
        if not self.is_turned:
            return [torch.randn(2, *shape).to(self.device, dtype) for shape in shapes]
        turned = [torch.randn(2, t, h, d).transpose(1, 2) for h, t, d in shapes]
        return [tensor.to(self.device, dtype) for tensor in turned]

    def function(self) -> Callable[..., Any]:
        mask, grouped = self.block_mask(), self.heads[0] != self.heads[1]

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return flex_attention(
                query, key, value, self.score, mask, self.scale, grouped, return_lse=True
            )

        return attention


def exact(program: Program, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and logsumexp by the plain formula, in the dtype of the tensors."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if program.scale is None else program.scale
    scores = query @ key.transpose(-2, -1) * scale
    sizes = enumerate(scores.shape)
    axes = [
        torch.arange(n, device=query.device).view([-1 if d == axis else 1 for d in range(4)])
        for axis, n in sizes
    ]
    if program.score is not None:
        scores = program.score(scores, *axes)
    if program.mask is not None:
        scores = torch.where(program.mask(*axes), scores, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    shares = torch.where(empty, 0.0, torch.softmax(scores.masked_fill(empty, 0.0), -1))
    return shares @ value, scores.logsumexp(-1)


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(s / 2) * 2


def programs(device: str) -> dict[str, Program]:
    """Return the programs by name. What their functions read is on the device."""
    with torch.device(device):
        slopes = torch.linspace(0.1, 0.4, 4)
        documents = torch.arange(LENGTH).mul(7).remainder(LENGTH).div(17, rounding_mode="floor")
        bias = torch.linspace(-1, 1, HEADS * LENGTH * LENGTH).view(HEADS, LENGTH, LENGTH)
        relative = torch.linspace(-1, 1, 2 * LENGTH)

    def alibi(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + slopes[h] * (j - i)

    made = {
        "plain": Program(),
        "a negative scale": Program(scale=-0.4),
        "causal": Program(mask=causal),
        "causal with slopes": Program(alibi, causal),
        "slopes": Program(alibi),
        "a window": Program(mask=lambda b, h, i, j: (i - j).abs() < 9),
        "documents": Program(mask=lambda b, h, i, j: (documents[i] == documents[j]) & (i >= j)),
        "a mask by head": Program(mask=lambda b, h, i, j: (i + 9 * h >= j) | (b > 0), by_head=True),
        "a mask without blocks": Program(capped, causal, block=None),
        "capped": Program(capped, causal),
        "a bias": Program(lambda s, b, h, i, j: s + bias[h, i, j]),
        "a relative bias": Program(lambda s, b, h, i, j: s + relative[j - i + LENGTH]),
        "a bias of documents": Program(lambda s, b, h, i, j: s * slopes[documents[i]]),
        "squares": Program(lambda s, b, h, i, j: s * s * 0.1 + torch.where(i > j, s, -s)),
        "a score that masks": Program(lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf)),
        "a constant score": Program(lambda s, b, h, i, j: s * 0 + i * 0.01),
        "rows without keys": Program(alibi, lambda b, h, i, j: (i != 3) & (i < 30) & (i >= j)),
        "no keys": Program(mask=lambda b, h, i, j: i > 200),
        "grouped heads": Program(alibi, causal, heads=(4, 2)),
        "grouped heads without a mask": Program(heads=(4, 1)),
        "odd lengths": Program(capped, causal, lengths=(45, 59)),
        "odd lengths without a mask": Program(alibi, lengths=(59, 45)),
        "blocks longer than the sequence": Program(mask=causal, block=128, lengths=(40, 40)),
        "blocks of two sizes": Program(mask=causal, block=(32, 64)),
        "narrow heads": Program(alibi, causal, widths=(8, 24)),
        "heads after positions": Program(alibi, causal, is_turned=True),
    }
    return {name: replace(program, device=device) for name, program in made.items()}
