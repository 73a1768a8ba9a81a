"""Steps of training that several cases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["state_of", "train"]


def _mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of what a model has learnt, buffers too."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any], torch.Tensor] = _mean_square,
) -> dict[str, Any]:
    """A step of SGD for each batch (a tensor, or a dict of keywords); losses and the state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        value = loss(output)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return {"losses": losses, "state": state_of(model)}
