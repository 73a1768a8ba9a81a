"""torchmetrics: metrics in the compiled step, functional and with state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchmetrics import Accuracy, MeanMetric, MeanSquaredError, MetricCollection
from torchmetrics.classification import MulticlassF1Score
from torchmetrics.functional import accuracy, mean_squared_error

from .case import Tag, case


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(8, 5), torch.randint(0, 5, (8,))) for _ in range(3)]


@case("torchmetrics", "functional")
def functional(tag: Tag) -> Any:
    @tag
    def judge(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        right = accuracy(logits.softmax(-1), labels, task="multiclass", num_classes=5)
        return right, mean_squared_error(logits[:, 0], labels.float())

    return [judge(*batch) for batch in _batches()]


def _count(tag: Tag, metric: Any) -> Any:
    """update() in the compiled step, compute() and reset() after it."""

    @tag
    def step(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        metric.update(logits, labels)
        return nn.functional.cross_entropy(logits, labels)

    losses = [step(*batch) for batch in _batches()]
    counted = metric.compute()
    metric.reset()
    return losses, counted, step(*_batches()[0]), metric.compute()


@case("torchmetrics", "Accuracy.update in the step")
def updated(tag: Tag) -> Any:
    return _count(tag, Accuracy(task="multiclass", num_classes=5))


@case("torchmetrics", "MetricCollection.update in the step")
def collected(tag: Tag) -> Any:
    accuracy = Accuracy(task="multiclass", num_classes=5)
    return _count(tag, MetricCollection({"a": accuracy, "f": MulticlassF1Score(num_classes=5)}))


@case("torchmetrics", "metrics called in the step")
def called(tag: Tag) -> Any:
    error, mean = MeanSquaredError(), MeanMetric()

    @tag
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        return error(x, y), mean(x.abs())

    seen = [step(torch.randn(6), torch.randn(6)) for _ in range(3)]
    return seen, error.compute(), mean.compute()
