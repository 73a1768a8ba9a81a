"""torch.lstm, gru, rnn_tanh, rnn_relu: what nn.LSTM and its kin call.

Comes in: the arguments of a call over a padded sequence. Goes out: one node, or a graph break: a
packed sequence has lengths that are tensor data, and where no kernel has the backward of a layer
its formula would be that of every step (a GRU of three steps took 16 s to compile, 80 kernels).
"""

from __future__ import annotations

from typing import Any

import torch

from ...graph.autocast import OFF
from ...graph.node_meta import device_of
from ...graph.recurrent import RECURRENT, is_fused_lstm
from ...guards.guard import StateRead
from ..breaks import GraphBreak, RefusedTorchCall
from ..values.base import Args, Kwargs, Machine, Value
from ..values.sequences import SequenceValue
from ..values.tensor import TensorValue, record
from .registry import handles

__all__: list[str] = []

_ARGUMENTS = 9


def _refuse(function: Any, why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=f"torch.{function.__name__}", why=why))


def _register(function: Any) -> None:
    @handles(function)
    def _follow(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != _ARGUMENTS or kwargs or isinstance(args[2], TensorValue):
            raise _refuse(function, "the lengths of a packed sequence are tensor data")
        if machine.graph.autocast != OFF:
            raise _refuse(function, "torch.autocast casts the weights of a layer inside of it")
        input, states, weights = (_tensors(machine, function, arg) for arg in args[:3])
        given = (*input, *states, *weights)
        if machine.graph.grad_enabled and any(one.meta.requires_grad for one in given):
            _check_backward(machine, function, input[0], [one.meta for one in states])
        return record(machine, function, args)


def _tensors(machine: Machine, function: Any, value: Value) -> list[TensorValue]:
    """A tensor, or those of a list."""
    held = value.items if isinstance(value, SequenceValue) else [value]
    known = [one.realize(machine) for one in held]
    tensors = [one for one in known if isinstance(one, TensorValue)]
    if len(tensors) < len(known):
        raise _refuse(function, "some of its tensors are none")
    return tensors


def _check_backward(machine: Machine, function: Any, input: TensorValue, states: list[Any]) -> None:
    """Whether a graph can hold the backward of the layers."""
    if device_of(input.node).type != "cpu":
        raise _refuse(function, "the backward of cuDNN's layers needs their weights in one buffer")
    machine.guard(StateRead(torch._C._get_mkldnn_enabled, torch._C._get_mkldnn_enabled()))
    if not is_fused_lstm(RECURRENT[function], input.meta, states):
        raise _refuse(function, "no kernel has the backward of its layers")


for _function in RECURRENT:
    _register(_function)
