"""Functions and modules that are saved and loaded, each with arguments of its calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .shapes import Pair

__all__ = ["INFERENCE", "TRAINING"]

SCALE = torch.full((8,), 1.5)


class Tied(nn.Module):
    """Two layers share a weight; a buffer and a plain tensor attribute are read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.arange(8.0))
        self.plain = torch.ones(8)
        self.parts = [torch.zeros(8), torch.ones(8)]

    def forward(self, x: torch.Tensor, *, times: int = 2) -> dict[str, Any]:
        y = self.two(F.relu(self.one(x))) * times + self.shift
        return {"y": y * self.plain, "both": Pair(y.sum(-1), y + self.parts[1])}


class Normed(nn.Module):
    """Batch norm in training updates its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


def closed() -> Any:
    weight = torch.linspace(0, 1, 8)

    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * weight, x.sum() * SCALE

    return scaled


def nested(items: list[torch.Tensor], more: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [items[0] + more["a"], items[1] * 2, more["a"]]


def in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.t()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


INFERENCE: dict[str, Any] = {
    "tied": (Tied, lambda: (torch.randn(4, 8),)),
    "normed": (lambda: Normed().eval(), lambda: (torch.randn(2, 3, 8, 8),)),
    "closed": (closed, lambda: (torch.randn(3, 8),)),
    "nested": (lambda: nested, lambda: ([torch.randn(3), torch.randn(3)], {"a": torch.randn(3)})),
    "in_place": (lambda: in_place, lambda: (torch.randn(3, 4),)),
    "encoder": (lambda: encoder().eval(), lambda: (torch.randn(2, 5, 16),)),
}
TRAINING: dict[str, Any] = {
    "tied": (Tied, lambda: (torch.randn(4, 8, requires_grad=True),)),
    "normed": (Normed, lambda: (torch.randn(2, 3, 8, 8),)),
    "closed": (closed, lambda: (torch.randn(3, 8, requires_grad=True),)),
    "encoder": (encoder, lambda: (torch.randn(2, 5, 16),)),
}
