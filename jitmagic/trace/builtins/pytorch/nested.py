"""Padded batches in nn.TransformerEncoder, whose layers take nested tensors in inference.

The encoder packs the positions that a mask keeps into a nested tensor, runs its layers and pads
again. The graph computes with the padded tensor and the mask throughout. If the mask keeps the
beginning of each row (is left-aligned), the padding is zero after the layers, as in eager.
Otherwise eager runs the layers over the padded tensor. The graph has both results and selects one
by the mask.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn

from ...breaks import GraphBreak, TensorItem
from ...result import Recipe
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []

_ENCODER = nn.TransformerEncoder.forward.__code__
_MASK = 18  # the index of the mask among the arguments of a layer, before its type
_OF_ROWS = 1  # a mask of keys: True is padding


class _NestedValue(Value):
    """The rows of `padded` up to the length that the mask keeps."""

    __slots__ = ("_born", "keep", "padded")

    def __init__(self, machine: Machine, padded: TensorValue, keep: Value) -> None:
        super().__init__()
        self.padded, self.keep, self._born = padded, keep, machine.step

    def python_type(self, machine: Machine) -> type:
        return torch.Tensor

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "is_nested":
            return machine.constant(True)
        if name == "to_padded_tensor":
            return _PaddingValue(self)
        if name in ("dim", "dtype", "device", "requires_grad"):
            return self.padded.get_attr(machine, name)
        self.refuse(machine, f"attribute {name!r}")

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a nested tensor", self._born)

    def describe(self) -> str:
        return "a nested tensor"


class _PaddingValue(Value):
    """The bound method `nested.to_padded_tensor`."""

    __slots__ = ("owner",)

    def __init__(self, owner: _NestedValue) -> None:
        super().__init__()
        self.owner = owner

    def python_type(self, machine: Machine) -> type:
        return type(torch.empty(0).to_padded_tensor)

    def call(self, machine: Any, args: Args, kwargs: Kwargs) -> Value:
        """Pad to the size that the encoder received, which is that of the tensor."""
        if machine.frame.program.code is not _ENCODER or kwargs:
            self.refuse(machine, "such a call")
        keep = self.owner.keep
        beginning = record(machine, "cumprod", [keep, machine.constant(1)])
        aligned = record(machine, "all", [record(machine, operator.eq, [beginning, keep])])
        rest = record(machine, "logical_not", [aligned])
        rows = record(machine, operator.or_, [keep, rest])
        # If a mask is not left-aligned, eager runs over all rows: `rest` keeps all of them.
        shown = record(machine, "unsqueeze", [rows, machine.constant(-1)])
        return record(machine, torch.where, [shown, self.owner.padded, args[0]])

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant("to_padded_tensor")))


@handles(torch._nested_tensor_from_mask_left_aligned)
def _left_aligned(machine: Any, args: Args, kwargs: Kwargs) -> Value:
    """Return True whatever the data: the code after it handles both cases."""
    if machine.frame.program.code is not _ENCODER:
        raise GraphBreak(TensorItem.of(what="torch _nested_tensor_from_mask_left_aligned()"))
    # The encoder has taken a branch that is only right together with the padding at its end.
    if machine.frame is machine.root:
        born: int = machine.step

        def check(builder: Builder) -> None:
            if machine.stop is not None:
                raise CannotRebuild("an encoder between its check of a mask and its end", born)

        machine.at_exit(check)
    answer: Value = machine.constant(True)
    return answer


@handles(torch._nested_tensor_from_mask)
def _from_mask(machine: Any, args: Args, kwargs: Kwargs) -> Value:
    padded, keep = args[:2]
    if machine.frame.program.code is not _ENCODER or not isinstance(padded, TensorValue):
        return record(machine, torch._nested_tensor_from_mask, args, kwargs)
    return _NestedValue(machine, padded, keep)


@handles(torch._transformer_encoder_layer_fwd)
def _layer(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    nested = args[0]
    if not isinstance(nested, _NestedValue):
        return record(machine, torch._transformer_encoder_layer_fwd, args, kwargs)
    padding = record(machine, torch.logical_not, [nested.keep])
    given = [nested.padded, *args[1:_MASK], padding, machine.constant(_OF_ROWS)]
    made = record(machine, torch._transformer_encoder_layer_fwd, given)
    assert isinstance(made, TensorValue)
    return _NestedValue(machine, made, nested.keep)
