"""lightning: the network of a LightningModule compiled, and its training_step."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jitmagic.integrations.lightning import JitCallback

from .case import Tag, case
from .systems import keywords_of
from .training import state_of

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)
        )
        self.losses: list[float] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self(inputs), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        self.log("judged", nn.functional.cross_entropy(self(inputs), labels))

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.losses.append(outputs["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def _fit(model: Classifier, **overrides: Any) -> Any:
    data = TensorDataset(torch.randn(32, 12), torch.randint(0, 3, (32,)))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **overrides,
    )
    trainer.fit(model, DataLoader(data, batch_size=8), DataLoader(data, batch_size=16))
    judged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {"losses": model.losses, "judged": judged, "state": state_of(model)}


@case("lightning", "network compiled")
def network(tag: Tag) -> Any:
    model = Classifier()
    tag(model.net)
    return _fit(model, gradient_clip_val=0.5)


@case("lightning", "network compiled, bf16", rtol=2e-2)
def network_bf16(tag: Tag) -> Any:
    model = Classifier()
    tag(model.net)
    return _fit(model, precision="bf16-mixed")


@case("lightning", "JitCallback")
def callback(tag: Tag) -> Any:
    model, keywords = Classifier(), keywords_of(tag)
    if keywords is None:
        tag(model.net)
    found = _fit(model, callbacks=[] if keywords is None else [JitCallback(**keywords)])
    tag(model.net)  # is counted: the callback has tagged it
    return found


@case("lightning", "the module compiled, and its training_step, which logs")
def whole_step(tag: Tag) -> Any:
    model = tag(Classifier())
    model.training_step = tag(model.training_step)
    return _fit(model)
