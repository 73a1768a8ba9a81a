"""Data that come in batches of changing size: two compiles serve them, in inference and training.

A DataLoader's last short batch, lengths out of buckets, boxes that a detector finds (none at all
among them), packed and padded sequences, nested lists of tensors. Each program is compared with
eager: results, gradients of inputs and parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED

Batches = Callable[[], Iterable[tuple[Any, ...]]]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), target)


def loader() -> Iterator[tuple[Any, ...]]:
    x, y = torch.randn(42, 6), torch.arange(42) % 3
    for _ in range(2):  # epochs: 5 batches of 8, one of 2
        yield from DataLoader(TensorDataset(x, y), batch_size=8)


class Encoder(nn.Module):
    """An encoder of tokens padded to the longest of their bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        pad = ids == 0
        h = self.tokens(ids)
        h = h + self.attention(h, h, h, key_padding_mask=pad, need_weights=False)[0]
        mean = (h * ~pad[..., None]).sum(1) / (~pad).sum(1, keepdim=True)
        return self.out(mean)


def buckets() -> Iterator[tuple[Any, ...]]:
    for width in (8, 16, 8, 32, 24, 16, 48, 64):
        ids = torch.randint(1, 20, (4, width))
        ids[1:, width // 2 :] = 0
        yield (ids,)


class Boxes(nn.Module):
    """Postprocessing of a detector: scores above a threshold, boxes that overlap less, their
    loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, wanted: torch.Tensor) -> Any:
        boxes = boxes * self.scale
        area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
        low = torch.maximum(boxes[:, None, :2], wanted[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], wanted[None, :, 2:])
        both = (high - low).clamp(min=0).prod(2)
        other = (wanted[:, 2:] - wanted[:, :2]).clamp(min=0).prod(1)
        iou = both / (area[:, None] + other[None] - both).clamp(min=1e-6)
        suppressed = (both.sum(1) > area * 0.7) & (scores < 0.5)
        return (iou * scores[:, None]).sum() + (area * ~suppressed).sum()


def found(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2)
    return torch.cat([corner, corner + torch.rand(count, 2)], 1)


def detections() -> Iterator[tuple[Any, ...]]:
    for count, wanted in ((5, 3), (9, 4), (17, 6), (3, 7), (33, 2), (12, 5)):
        yield found(count), torch.rand(count), found(wanted)


class Padded(nn.Module):
    """A recurrent layer over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        h = self.into(x).tanh() * mask[..., None]
        last = h.cumsum(1).gather(1, (lengths - 1)[:, None, None].expand(-1, 1, 8))
        return self.out(last[:, 0])


def padded() -> Iterator[tuple[Any, ...]]:
    for lengths in ((3, 5), (4, 2, 7), (9, 8, 2, 6), (11, 3), (2, 6, 5), (13, 12, 4)):
        x = rnn.pad_sequence([torch.randn(n, 5) for n in lengths], batch_first=True)
        yield x, torch.tensor(lengths)


class Packed(nn.Module):
    """Sequences one behind the other, and where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 8)

    def forward(self, x: torch.Tensor, of: torch.Tensor, count: int) -> torch.Tensor:
        h = self.layer(x).relu()
        total = h.new_zeros(count, 8).index_add(0, of, h)
        return total / torch.bincount(of, minlength=count)[:, None]


def packed() -> Iterator[tuple[Any, ...]]:
    for lengths in ((3, 5), (4, 2, 7), (9, 8, 2, 6), (11, 3, 1), (2, 6, 5, 4), (13, 12)):
        of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        yield torch.randn(len(of), 5), of, len(lengths)


class Levels(nn.Module):
    """Nested lists of tensors: maps of features, each of a size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, maps: list[list[torch.Tensor]], extra: dict[str, Any]) -> Any:
        pooled = [[m.mean((-2, -1)) * w for m in each] for each, w in zip(maps, self.weight)]
        flat = torch.cat([m for each in pooled for m in each], -1)
        return flat.sum(-1) * extra["scale"], {"sizes": [m[0].numel() for m in maps]}


def levels() -> Iterator[tuple[Any, ...]]:
    for batch, size in ((2, 8), (3, 6), (5, 12), (4, 16), (7, 10), (6, 20)):
        maps = [[torch.randn(batch, 4, size // k, size) for k in (1, 2)] for _ in range(3)]
        yield maps, {"scale": torch.rand(batch)}


class Neighbours(nn.Module):
    """Means over edges: how many edges end in a node is counted, at least one number per node."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        begin, end = edges
        degree = torch.bincount(end, minlength=x.size(0)).clamp(min=1).unsqueeze(-1)
        mean = torch.zeros_like(x).index_add(0, end, x[begin]) / degree
        return F.normalize(self.own(x) + self.others(mean), dim=-1)


def edges() -> Iterator[tuple[Any, ...]]:
    for nodes in (6, 9, 7, 30):
        yield torch.randn(nodes, 3), torch.randint(0, nodes, (2, 2 * nodes))


class Usage(nn.Module):
    """Average in place how often each code was chosen, as quantizers do."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(8, 3))

    def forward(self, x: torch.Tensor) -> Any:
        chosen = torch.cdist(x, self.codes).argmin(1)
        usage = torch.full((8,), 0.5)
        usage.mul_(0.9).add_(torch.bincount(chosen, minlength=8), alpha=0.1)
        return self.codes[chosen] + x, usage


def vectors() -> Iterator[tuple[Any, ...]]:
    yield from ((torch.randn(count, 3),) for count in (5, 9, 7, 20))


CASES: dict[str, tuple[type[nn.Module], Batches]] = {
    "last batch": (Classifier, loader),
    "buckets": (Encoder, buckets),
    "boxes": (Boxes, detections),
    "padded": (Padded, padded),
    "packed": (Packed, packed),
    "nested lists": (Levels, levels),
    "edges": (Neighbours, edges),
    "codes": (Usage, vectors),
}


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_two_compiles_serve_all_batches(name: str, train: bool) -> None:
    torch.manual_seed(0)
    make, batches = CASES[name]
    model = make()
    made = jitmagic.jit(copy.deepcopy(model))
    for batch in batches():
        _compare(made, model, batch, train)
    records = list(handle_of(made).journal.records)
    assert all(record.outcome == COMPILED for record in records)
    forward = [record for record in records if record.result("trace") is not None]
    assert len(forward) <= 2  # further records: kernels of the first sizes, kept for them


def _compare(made: nn.Module, model: nn.Module, batch: tuple[Any, ...], train: bool) -> None:
    with torch.set_grad_enabled(train):
        got, wanted = made(*batch), model(*batch)
    torch.testing.assert_close(got, wanted)
    if train:
        for each, result in ((made, got), (model, wanted)):
            each.zero_grad()
            losses = [t.sum() for t in tree_leaves(result) if torch.is_tensor(t)]
            torch.stack(losses).sum().backward()
        for one, other in zip(made.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_no_boxes_and_one_box_are_a_compile_each(train: bool) -> None:
    model = Boxes()
    made = jitmagic.jit(copy.deepcopy(model))
    for count, wanted in ((5, 3), (0, 3), (9, 4), (1, 3), (0, 5), (7, 0), (17, 6), (0, 2)):
        _compare(made, model, (found(count), torch.rand(count), found(wanted)), train)
    forward = [r for r in handle_of(made).journal.records if r.result("trace") is not None]
    assert len(forward) <= 6  # with any number of the others, and before those were seen to vary


def suppress(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
    """Non-maximum suppression, in torch: greedy, by falling score."""
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    over = (both / (area[:, None] + area[None] - both) > limit).triu(1)
    return order[~over.any(0)]


def test_boxes_that_data_pick() -> None:
    def pick(boxes: torch.Tensor, scores: torch.Tensor) -> Any:
        sure = scores > 0.3
        boxes, scores = boxes[sure], scores[sure]
        kept = suppress(boxes, scores, 0.5)
        return boxes[kept], scores[kept]

    made = jitmagic.jit(pick)
    for count in (8, 12, 20, 5, 33, 16):
        boxes, scores = found(count), torch.rand(count)
        torch.testing.assert_close(made(boxes, scores), pick(boxes, scores))
    none = found(6), torch.zeros(6)
    torch.testing.assert_close(made(*none), pick(*none))
    records = list(handle_of(made).journal.records)  # that of no boxes has plans of its own
    assert all(record.outcome == COMPILED for record in records)
    assert sum(record.result("trace") is not None for record in records) <= 2
