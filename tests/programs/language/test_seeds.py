"""The seeds' programs, one test each; and the training loop of the fourth document."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import jitmagic

from ..harness import Program, check
from .seeds import PROGRAMS, Classifier, SimpleModel


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_behaves_as_eager(program: Program) -> None:
    check(program)


def train(compile_: bool, epochs: int = 2, samples: int = 640) -> tuple[list[float], nn.Module]:
    """The document's training loop, on fewer samples."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(samples, 784), torch.randint(0, 10, (samples,)))
    loader = DataLoader(dataset, batch_size=32, drop_last=True)
    model: nn.Module = Classifier()
    if compile_:
        model = jitmagic.jit(model)
    optimizer = optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


def test_training_loop_gives_the_same_losses() -> None:
    eager, _ = train(compile_=False)
    ours, model = train(compile_=True)
    assert ours == pytest.approx(eager, rel=1e-4)
    assert list(model.state_dict()) == list(Classifier().state_dict())


def test_scripted_and_traced_modules_run_as_they_are(tmp_path) -> None:
    """TorchScript objects are C++: nothing to compile, nothing may change."""
    model = SimpleModel()
    x = torch.randn(1, 3, 24, 24)
    traced = torch.jit.trace(model, x)
    traced.save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")

    @jitmagic.jit
    def call(x):
        return loaded(x) + 1

    assert torch.equal(call(x), model(x) + 1)
