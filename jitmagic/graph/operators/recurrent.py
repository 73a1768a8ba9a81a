"""Recurrent layers: their shapes from one time step, and the operator of an LSTM in training.

torch's own meta run of a layer unrolls every step of the sequence. Input: the arguments of
`torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` as meta tensors. Output: eager's result or error, in a
time that does not depend on the length of the sequence.

oneDNN's LSTM saves tensors for its backward only if the grad mode is on, and a compiled forward
runs with it off. `jitmagic::lstm_layer` is that kernel in its training form.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...compat.flags import get_mkldnn_enabled, has_mkldnn
from ...compat.functions import pack_padded_sequence
from ...compat.modes import BelowAutograd
from ...torch_types import Args
from ..fresh_meta import fresh_meta
from ..symbolic.sym_node import sizes_in, with_hints
from .operator_library import LASTING, LIBRARY, is_registered
from .shape_rules import infers

__all__ = [
    "LSTM_LAYER",
    "RECURRENT",
    "by_one_step",
    "differentiable",
    "is_fused_lstm",
    "sequences_in",
    "takes_packed_sequence",
]

aten = torch.ops.aten
Tensor = torch.Tensor

RECURRENT: Mapping[object, Any] = {  # function -> the operator that it calls
    torch.lstm: aten.lstm.input,
    torch.gru: aten.gru.input,
    torch.rnn_tanh: aten.rnn_tanh.input,
    torch.rnn_relu: aten.rnn_relu.input,
}

_SCHEMA = str(aten.mkldnn_rnn_layer.default._schema).removeprefix("aten::mkldnn_rnn_layer")


def _train_layer(*args: object) -> object:
    with BelowAutograd(), torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*args)


if not is_registered("lstm_layer"):  # it stays registered if jitmagic is imported again
    LIBRARY.define(f"lstm_layer{_SCHEMA}")
    LIBRARY.impl("lstm_layer", _train_layer, "CPU")
LSTM_LAYER: Any = torch.ops.jitmagic.lstm_layer.default
LASTING.add(LSTM_LAYER)


def is_fused_lstm(operator: object, input: Tensor, states: Sequence[Tensor]) -> bool:
    """Return whether torch runs an LSTM on the CPU by oneDNN, layer by layer
    (ATen/native/RNN.cpp).
    """
    enabled = has_mkldnn and get_mkldnn_enabled()
    projected = operator is aten.lstm.input and states[0].shape != states[1].shape
    usual = operator is aten.lstm.input and input.dtype is torch.float32 and input.numel()
    return bool(enabled and usual and not projected)


def takes_packed_sequence(function: object, args: Args) -> bool:
    """Return whether a layer is called with a packed sequence: counts as second argument."""
    return function in RECURRENT and isinstance(args[3], (list, tuple))


def sequences_in(node: Node) -> int | torch.SymInt | None:
    """Return the size that `batch_sizes[0]` of a packed sequence is: each sequence has a first
    step.
    """
    counts = node.args[0] if node.target is operator.getitem and node.args[1:] == (0,) else None
    if not isinstance(counts, Node) or any("mutates" in user.meta for user in counts.users):
        return None
    packed = counts.args[0] if counts.target is operator.getitem and counts.args[1] == 1 else None
    if not isinstance(packed, Node) or packed.target is not pack_padded_sequence:
        return None
    padded, _, batch_first = packed.args
    shape: torch.Size = padded.meta["val"].shape  # type: ignore[union-attr]
    return shape[0 if batch_first else 1]


def by_one_step(function: Any) -> Any:
    """Return the function to call on meta tensors in place of a layer; others stay."""
    if function not in RECURRENT:
        return function

    def outcome(input: Tensor, *args: Any) -> Any:
        """Run one step. The last argument says whether the batch comes first; a packed sequence has
        the number of rows of each step as second argument.
        """
        if takes_packed_sequence(function, (input, *args)):
            return _over_packed(input, *args)
        if input.dim() != 3:
            return function(input, *args)
        time = 1 if args[-1] else 0
        steps = input.shape[time]
        first = input.narrow(time, 0, min(steps, 1))
        if next(sizes_in((first, args[0])), None) is not None:
            here = function(*with_hints((first, *args)))  # torch's C++ needs ints
            return _over_sizes([one.dtype for one in here], input, *args)
        made, *states = function(first, *args)
        if time == 0:
            return made.repeat(steps, 1, 1), *states
        return made.transpose(0, 1).repeat(steps, 1, 1).transpose(0, 1), *states

    return outcome


def _over_sizes(
    dtypes: Sequence[torch.dtype],
    input: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    *args: object,
) -> tuple[Tensor, ...]:
    held = states if isinstance(states, (list, tuple)) else [states]
    batch = input.shape[0 if args[-1] else 1]
    if not all(one.shape[1] == batch for one in held):
        raise RuntimeError(f"a hidden state is not for a batch of {batch}")
    inputs = (input, *held, *weights)
    made = zip(_all_layers(input, states, weights, *args), dtypes, strict=True)
    return tuple(differentiable(one.to(dtype), inputs) for one, dtype in made)


def _over_packed(
    data: Tensor, counts: Tensor, states: Any, weights: Sequence[Tensor], *args: object
) -> tuple[Tensor, ...]:
    held = states if isinstance(states, (list, tuple)) else [states]
    shape = (data.shape[0], held[0].shape[2] * (2 if args[-1] else 1))
    made = (fresh_meta(shape, data.dtype), *_empty(*held))
    return tuple(differentiable(one, (data, *held, *weights)) for one in made)


def differentiable(made: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Give a result the history of a function of these inputs."""
    read = [one.sum() for one in inputs if one.requires_grad]
    return made + sum(read) if read and torch.is_grad_enabled() else made


def _empty(*likes: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.empty(like.shape, dtype=like.dtype, device="meta") for like in likes)


@infers(*RECURRENT.values(), by_strides=False)
def _all_layers(input: Tensor, states: Any, *args: object) -> tuple[Tensor, ...]:
    """Infer a layer that is one operation; its arguments were checked before."""
    *_, both, batch_first = args
    held = states if isinstance(states, (list, tuple)) else [states]
    shape = (*input.shape[:2], held[0].shape[2] * (2 if both else 1))
    if batch_first:  # the layers run time-major
        shape = (shape[1], shape[0], shape[2])
    made = torch.empty(shape, dtype=input.dtype, device="meta")
    return (made.transpose(0, 1) if batch_first else made, *_empty(*held))


@infers(aten.mkldnn_rnn_layer.default, LSTM_LAYER, by_strides=False)
def _layer(input: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Infer results, both states, and the workspace of the kernel's own backward."""
    hx, cx, hidden = args[4], args[5], args[9]
    made = torch.empty((*input.shape[:-1], hidden), dtype=input.dtype, device="meta")
    return (made, *_empty(hx, cx), torch.empty(0, dtype=torch.uint8, device="meta"))


@infers(aten.mkldnn_rnn_layer_backward.default, by_strides=False)
def _layer_backward(*args: Any) -> tuple[Tensor, ...]:
    """Infer gradients of the input, of two weights and two biases, and of both states."""
    return _empty(*args[:7])
