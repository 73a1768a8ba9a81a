"""Rules for the oneDNN kernel of one LSTM layer in training."""

from __future__ import annotations

import torch

from ...graph.operators.recurrent import LSTM_LAYER
from ..recording.recorder import Recorder, Sym
from .registry import rule

__all__: list[str] = []

aten = torch.ops.aten


@rule(aten.mkldnn_rnn_layer.default)
def _layer(r: Recorder, *args: object) -> list[Sym]:
    """Record the layer as differentiable, so that it saves what its backward needs in whatever grad
    mode the compiled forward runs.
    """
    made: list[Sym] = r.call(LSTM_LAYER, *args)
    return made


@rule(aten.mkldnn_rnn_layer_backward.default)
def _layer_backward(r: Recorder, *args: object) -> list[Sym]:
    """Copy the bias gradient: the kernel returns one tensor as the gradient of both biases."""
    # A gradient that shares memory with another would be accumulated into twice by AccumulateGrad.
    made: list[Sym] = r.call(aten.mkldnn_rnn_layer_backward.default, *args)
    made[4] = r.copied(made[3])
    return made
