"""Calls a function of a torch-level graph while it is recorded.

In: the function and its arguments, traced tensors among them. Out: its result. With symbolic sizes,
functions whose C++ reads ints are called through operators that take SymInts
(graph/symbolic/sized_calls.py); so is an LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...graph.attribution import Silence, call_from
from ...graph.autocast_mode import OFF, read_autocast
from ...graph.operators.recurrent import is_fused_lstm
from ...graph.symbolic.sized_calls import call_with_sizes
from ...graph.symbolic.sym_node import sizes_in
from ...torch_types import AnyFunction
from .checked import data_checked

__all__ = ["recorded_call"]

aten = torch.ops.aten
_LSTM = 2  # oneDNN's number for LSTM layers


def recorded_call(
    function: AnyFunction, args: Sequence[Any], kwargs: Mapping[str, Any], is_sized: bool
) -> object:
    """Return `function(*args, **kwargs)` without its warnings, which the trace has issued."""
    if not is_sized:
        return call_from(Silence(), data_checked(function), args, kwargs)
    if function is torch.lstm and isinstance(args[2], list | tuple):
        return _lstm(*args, **kwargs)
    return call_with_sizes(Silence(), data_checked(function), args, kwargs)


def _lstm(
    input: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Call an LSTM in training layer by layer, as ATen/native/mkldnn/RNN.cpp does, for any length.
    torch's Python decomposition unrolls the steps if the input requires grad, and ignores dropout.
    """
    differs = torch.is_grad_enabled() and any(t.requires_grad for t in (input, *states, *weights))
    draws = dropout and train and layers > 1
    fused = (differs or draws) and is_fused_lstm(aten.lstm.input, input, states)
    plain = input.device.type == "cpu" and read_autocast() == OFF
    if not (fused and plain) or next(sizes_in(input), None) is None:
        return data_checked(torch.lstm)(  # type: ignore[no-any-return]
            input, states, weights, has_biases, layers, dropout, train, both, batch_first
        )
    made = (input.transpose(0, 1) if batch_first else input).contiguous()
    hx, cx = (state.contiguous() for state in states)
    places = 4 if has_biases else 2
    after: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        outputs = []
        for reverse in (False, True)[: 1 + both]:
            at = len(after)
            given = weights[places * at : places * (at + 1)]
            given = [*given, *([] if has_biases else map(torch.zeros_like, given))]
            output, *last, _ = aten.mkldnn_rnn_layer.default(
                made, *given, hx[at], cx[at], reverse, [], _LSTM, hx.shape[2], layers,
                has_biases, both, batch_first, train,
            )  # fmt: skip
            outputs.append(output)
            after.append(tuple(last))  # type: ignore[arg-type]
        made = torch.cat(outputs, -1) if both else outputs[0]
        if dropout and train and layer < layers - 1:
            made = torch.dropout(made, dropout, True)
    hidden, cells = (torch.stack(state) for state in zip(*after, strict=True))
    return (made.transpose(0, 1) if batch_first else made), hidden, cells
