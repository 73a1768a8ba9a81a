"""torch.lstm, gru, rnn_tanh and rnn_relu, which nn.LSTM, nn.GRU and nn.RNN call.

A call becomes one node, or a graph break. A packed sequence has a data-dependent length, so there
the node runs eagerly between partitions of the graph (graph/symbolic/data_split.py), and so do
packing and padding. For a padded sequence, if no kernel has the backward of a layer, the formula of
each time step is recorded. That costs 0.12 s of compile time per step, and runs in a seventh of
eager's time (GRU, 35 steps, two layers). So long sequences run eagerly too, and those whose length
varies, since each length would be a compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....compat.flags import get_mkldnn_enabled
from ....compat.functions import pack_padded_sequence, pad_packed_sequence
from ....graph.autocast_mode import OFF
from ....graph.node_meta import device_of
from ....graph.operators.recurrent import RECURRENT, is_fused_lstm
from ....guards.guard import StateRead
from ...breaks import GraphBreak, RefusedTorchCall
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import SequenceValue
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []

# Both overloads of torch._VF.lstm have nine arguments; the packed one has batch_sizes instead of
# batch_first.
_ARGUMENTS = 9
# Steps of all layers and directions: 0.12 s of compile time each. A training step of a GRU with
# 35 steps and two layers takes 3.1 ms, in eager 22.2 ms.
_MOST_CELLS = 96


def _refuse(function: Any, why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=f"torch.{function.__name__}", why=why))


def _register(function: Any) -> None:
    @handles(function)
    def _follow(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != _ARGUMENTS:
            raise _refuse(function, "its arguments differ from those of torch's modules")
        if machine.graph.autocast != OFF:
            raise _refuse(function, "torch.autocast casts the weights of a layer inside of it")
        # In the packed overload the list of weights comes one place later, after batch_sizes.
        if isinstance(args[3], SequenceValue):
            return _over_packed(machine, function, args)
        input, states, weights = (_tensors(machine, function, arg) for arg in args[:3])
        given = (*input, *states, *weights)
        differs = machine.graph.grad_enabled and any(one.meta.requires_grad for one in given)
        held = [one.meta for one in states]
        if not differs or _has_backward(machine, function, input[0], held, args[8]):
            return record(machine, function, args)
        if machine.graph is not machine.graph.root:
            raise _refuse(function, "no kernel has the backward of its layers")
        return _as_eager(record(machine, function, args), _drops(machine, args))


def _over_packed(machine: Machine, function: Any, args: Args) -> Value:
    given = [one for arg in args[:4] for one in _tensors(machine, function, arg)]
    _refuse_other_devices(function, given)
    return _as_eager(record(machine, function, args), _drops(machine, args))


def _drops(machine: Machine, args: Args) -> bool:
    dropout, training = args[6], args[7]
    return training.truth(machine) and dropout.truth(machine)


def _as_eager(made: Value, drops: bool = False) -> Value:
    """Mark the node of these results to run eagerly, between partitions of the graph."""
    first: Any = made.items[0]  # type: ignore[attr-defined]
    first.node.args[0].meta.update(data_dependent=True, random=drops)
    return made


def _refuse_other_devices(function: object, given: Sequence[TensorValue]) -> None:
    """Break unless all are on the CPU, as lengths are: a node's results share one device."""
    if any(device_of(one.node).type != "cpu" for one in given):
        raise _refuse(function, "the lengths of a packed sequence are on the CPU")


@handles(pack_padded_sequence, pad_packed_sequence)
def _pack_or_pad(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    padding = isinstance(args[2], TensorValue) if len(args) > 2 else False
    function = pad_packed_sequence if len(args) > 3 else pack_padded_sequence
    if padding or machine.graph.autocast != OFF:
        raise _refuse(function, "its arguments differ from those of torch.nn.utils.rnn")
    given = [one for arg in args[:2] for one in _tensors(machine, function, arg)]
    _refuse_other_devices(function, given)
    return _as_eager(record(machine, function, args))


def _tensors(machine: Machine, function: object, value: Value) -> list[TensorValue]:
    """Return a tensor, or those of a list."""
    held = value.items if isinstance(value, SequenceValue) else [value]
    known = [one.realize(machine) for one in held]
    tensors = [one for one in known if isinstance(one, TensorValue)]
    if len(tensors) < len(known):
        raise _refuse(function, "some of its arguments are not tensors")
    return tensors


def _has_backward(
    machine: Machine, function: object, input: TensorValue, states: list[Any], batch_first: Value
) -> bool:
    """Return whether a compiled graph can hold the backward of the layers."""
    if device_of(input.node).type != "cpu":
        raise _refuse(function, "the backward of cuDNN's layers needs their weights in one buffer")
    # The fused CPU kernel of an LSTM is oneDNN's, which the program may switch off.
    machine.guard(StateRead(get_mkldnn_enabled, get_mkldnn_enabled()))
    if is_fused_lstm(RECURRENT[function], input.meta, states):
        return True
    # Each step is compiled: 0.12 s of compile time for a step of a layer.
    time = 1 if batch_first.truth(machine) and input.meta.dim() == 3 else 0
    steps = input.meta.shape[time]
    return not isinstance(steps, torch.SymInt) and bool(steps * states[0].shape[0] <= _MOST_CELLS)


for _function in RECURRENT:
    _register(_function)
