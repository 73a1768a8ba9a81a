"""Layers of one class that are tagged one by one: what one of them compiles, the others use."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of

AUTO = {"background": "auto", "keep": "faster"}


class Layer(nn.Module):
    """A layer that is tagged by itself."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh() + 1


@pytest.mark.usefixtures("costly")
def test_layers_that_are_tagged_one_by_one_count_together(gate: threading.Event) -> None:
    """The first of them compiles once all were called as often as a compile takes to pay, and the
    others do when it is done.
    """
    layers = [Layer() for _ in range(4)]
    for layer in layers:
        jitmagic.jit(layer, options=AUTO)
    for layer in layers:
        layer(torch.randn(2, 4))
    begun = [layer for layer in layers if handle_of(layer).building is not None]
    assert begun == layers[3:], "the first call warms up, two are counted"
    for layer in layers[:3] * 5:
        layer(torch.randn(2, 4))
    assert [handle_of(layer).building for layer in layers[:3]] == [None] * 3
    gate.set()
    assert handle_of(layers[3]).building.wait(60)
    for layer in layers * 5:
        layer(torch.randn(2, 4))
    assert all(handle_of(layer).ledger.added or handle_of(layer).building for layer in layers)


@pytest.mark.usefixtures("costly")
def test_layers_of_other_sizes_count_alone() -> None:
    layers = [jitmagic.jit(Layer(width), options=AUTO) for width in range(4, 8)]
    for layer in layers:
        layer(torch.randn(2, 4))
    assert [handle_of(layer).building for layer in layers] == [None] * 4
    for _ in range(3):
        layers[0](torch.randn(2, 4))
    assert [handle_of(layer).building is not None for layer in layers] == [True, *[False] * 3]
