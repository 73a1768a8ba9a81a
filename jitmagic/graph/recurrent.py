"""Recurrent layers: their shapes from one step of time, and the operator of an LSTM in training.

torch's own meta run of a layer takes it apart into every step of the sequence. Comes in: the
arguments of `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` as meta tensors. Goes out: what eager
gives for them, or its error, in a time that does not depend on the length of the sequence.

oneDNN's LSTM keeps what its backward needs only where the grad mode says so, and a compiled
forward runs without it. `jitmagic::lstm_layer` is that kernel in its training form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["LSTM_LAYER", "RECURRENT", "RECURRENT_RULES", "by_one_step", "is_fused_lstm"]

aten = torch.ops.aten
Tensor = torch.Tensor

RECURRENT: Mapping[Any, Any] = {  # the functions, and the operators that they are
    torch.lstm: aten.lstm.input,
    torch.gru: aten.gru.input,
    torch.rnn_tanh: aten.rnn_tanh.input,
    torch.rnn_relu: aten.rnn_relu.input,
}

_LIBRARY = torch.library.Library("jitmagic", "FRAGMENT")  # it lives as long as the operators
_SCHEMA = str(aten.mkldnn_rnn_layer.default._schema).removeprefix("aten::mkldnn_rnn_layer")


def _train_layer(*args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*args)


_LIBRARY.define(f"lstm_layer{_SCHEMA}")
_LIBRARY.impl("lstm_layer", _train_layer, "CPU")
LSTM_LAYER: Any = torch.ops.jitmagic.lstm_layer.default


def is_fused_lstm(operator: Any, input: Tensor, states: Sequence[Tensor]) -> bool:
    """Whether torch hands an LSTM on the CPU to oneDNN, a layer at a time (ATen/native/RNN.cpp)."""
    enabled = torch._C._has_mkldnn and torch._C._get_mkldnn_enabled()
    projected = operator is aten.lstm.input and states[0].shape != states[1].shape
    usual = operator is aten.lstm.input and input.dtype is torch.float32 and input.numel()
    return bool(enabled and usual and not projected)


def by_one_step(function: Any) -> Any:
    """What to call on meta tensors in place of `function`; itself where it is no layer."""
    if function not in RECURRENT:
        return function

    def outcome(input: Tensor, *args: Any) -> Any:
        """The last argument says whether the batch comes first."""
        if input.dim() != 3:
            return function(input, *args)
        time = 1 if args[-1] else 0
        steps = input.shape[time]
        made, *states = function(input.narrow(time, 0, min(steps, 1)), *args)
        if time == 0:
            return made.repeat(steps, 1, 1), *states
        return made.transpose(0, 1).repeat(steps, 1, 1).transpose(0, 1), *states

    return outcome


def _empty(*likes: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(like.shape, dtype=like.dtype, device="meta") for like in likes)


def _all_layers(input: Tensor, states: Any, *args: Any) -> tuple[Tensor, ...]:
    """A layer that is one operation: its arguments have been looked at before."""
    *_, both, batch_first = args
    held = states if isinstance(states, (list, tuple)) else [states]
    shape = (*input.shape[:2], held[0].shape[2] * (2 if both else 1))
    if batch_first:  # computed with the time first
        shape = (shape[1], shape[0], shape[2])
    made = torch.empty(shape, dtype=input.dtype, device="meta")
    return (made.transpose(0, 1) if batch_first else made, *_empty(*held))


def _layer(input: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Results, both states, and what only the kernel's own backward reads."""
    hx, cx, hidden = args[4], args[5], args[9]
    made = torch.empty((*input.shape[:-1], hidden), dtype=input.dtype, device="meta")
    return (made, *_empty(hx, cx), torch.empty(0, dtype=torch.uint8, device="meta"))


def _layer_backward(*args: Any) -> tuple[Tensor, ...]:
    """Gradients of the input, of two weights and two biases, and of both states."""
    return _empty(*args[:7])


RECURRENT_RULES: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(RECURRENT.values(), _all_layers),
    **dict.fromkeys((aten.mkldnn_rnn_layer.default, LSTM_LAYER), _layer),
    aten.mkldnn_rnn_layer_backward.default: _layer_backward,
}
