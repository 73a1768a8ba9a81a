"""A layer of an LSTM that oneDNN computes, in training."""

from __future__ import annotations

from typing import Any

import torch

from ...graph.operators.recurrent import LSTM_LAYER
from ..recording.recorder import Recorder
from .registry import rule

__all__: list[str] = []

aten = torch.ops.aten


@rule(aten.mkldnn_rnn_layer.default)
def _layer(r: Recorder, *args: Any) -> Any:
    """A layer that is differentiated keeps what its backward needs, whatever the grad mode is when
    the compiled forward runs."""
    return r.call(LSTM_LAYER, *args)


@rule(aten.mkldnn_rnn_layer_backward.default)
def _layer_backward(r: Recorder, *args: Any) -> Any:
    """The kernel gives one tensor as the gradient of both biases."""
    made = r.call(aten.mkldnn_rnn_layer_backward.default, *args)
    made[4] = r.copied(made[3])
    return made
