"""Scaled dot-product attention, and padded batches in nn.TransformerEncoder.

torch chooses the kernel of attention by arguments and process settings. A call becomes a node, with
a guard on each setting that the choice depends on (`torch.backends.cuda.enable_flash_sdp`, the
order of preference); in a `with sdpa_kernel(...)` block the node sets them. The other conditions
(dtypes, strides, the mask, gradients) are guarded with the tensors.

A bool mask that can hold nothing but True is dropped, and a known causal mask becomes `is_causal`.
Libraries make both only while they are compiled, and broadcast them, so that fused GPU kernels
refuse them (ViT of transformers 5.17: 0.45x eager with the mask, 1.10x without) or compute masked
blocks (OPT: 20.5 ms instead of 13.4).

In inference the encoder packs the positions that a mask keeps into a nested tensor, runs its layers
and pads again. The graph computes with the padded tensor and the mask throughout. If the mask keeps
the beginning of each row (is left-aligned), the padding is zero after the layers, as in eager.
Otherwise eager runs the layers over the padded tensor. The graph has both results and selects one
by the mask.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from ....compat.flags import ATTENTION_GETTERS
from ....compat.functions import (
    choose_attention,
    nested_from_left_aligned_mask,
    nested_from_mask,
    self_attention,
    transformer_encoder_layer,
)
from ....graph.builder import GraphBuilder
from ....graph.node_meta import device_of
from ....graph.symbolic.known import known_mask
from ....graph.symbolic.ranges import always_true
from ....guards.process_readers import attention_priorities
from ....symbols.context import Specialize
from ....symbols.size import hintless
from ...breaks import GraphBreak, TensorItem
from ...restarts import TAKES_THE_COMPILED_BRANCH
from ...result import Recipe
from ...state import Interpreter
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.contexts.attention_kernels import with_kernels
from ...values.tensors.tensor import TensorValue, record
from ..registry import AS_GIVEN, handles
from .process_state import read_state

__all__: list[str] = []


_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@cache
def _settle_order() -> None:
    """Fix the order of kernels: torch's first choice on a GPU changes it, once for all."""
    like = torch.empty((1, 1, 8, 64), dtype=torch.bfloat16, device="cuda")  # any kernel takes it
    with suppress(RuntimeError):  # the program has disabled all kernels that this GPU has
        choose_attention(like, like, like)


def _guard_choice(machine: Machine) -> None:
    if torch.cuda.is_initialized():
        _settle_order()
    for read in (*ATTENTION_GETTERS, attention_priorities):
        read_state(machine, read)


_attend = F.scaled_dot_product_attention  # this object, even if it is replaced later


@handles(_attend, like=AS_GIVEN)
def _attention(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    _guard_choice(machine)
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    mask = given.get("attn_mask")
    said = _said_by(machine, mask, given) if isinstance(mask, TensorValue) else None
    attend = with_kernels(machine, _attend)
    if said is None or not isinstance(mask, TensorValue):
        return record(machine, attend, args, kwargs)
    given["attn_mask"] = machine.constant(None)
    if said == "causal":
        given["is_causal"] = machine.constant(True)
    tensors = [given.pop(name) for name in _PARAMETERS[:3]]
    made = record(machine, attend, tensors, given)
    if device_of(mask.node).type == "cpu" or _meta(mask.node).stride()[-1:] == (1,):
        return made
    return record(machine, "contiguous", [made])  # as eager's unfused kernel leaves it


def _said_by(
    machine: Machine, mask: TensorValue, given: Mapping[str, Value]
) -> Literal["nothing", "causal"] | None:
    """Return the kind of a mask that eager accepts but attention does not need."""
    try:
        return _told_by(machine, mask, given)
    except Specialize as special:
        if not all(map(hintless, special.symbols)):
            raise
        return None  # data-dependent sizes: keep the mask


def _told_by(
    machine: Machine, mask: TensorValue, given: Mapping[str, Value]
) -> Literal["nothing", "causal"] | None:
    query, key = given.get("query"), given.get("key")
    if not isinstance(query, TensorValue) or not isinstance(key, TensorValue):
        return None
    if _meta(mask.node).dtype is not torch.bool or device_of(mask.node) != device_of(query.node):
        return None
    if not _is(machine, given.get("is_causal"), False):
        return None  # eager raises
    # If eager has no mask either, because the library makes it only for compilers, it also draws
    # from the kernel without a mask.
    if not _is(machine, given.get("dropout_p"), 0.0) and not _made_for_compilers(machine):
        return None  # another kernel draws other numbers
    scores = (*_meta(query.node).shape[:-1], *_meta(key.node).shape[-2:-1])
    shape = _meta(mask.node).shape
    fits = len(shape) <= len(scores) and all(
        extent in (1, wanted)
        for extent, wanted in zip(reversed(shape), reversed(scores), strict=False)
    )
    if not fits:
        return None
    if always_true(machine.graph, mask.node):
        return "nothing"
    return _read(machine.graph, mask.node) if _is_square(scores) else None


def _is(machine: Machine, value: Value | None, default: object) -> bool:
    return value is None or (value.is_constant(machine) and value.as_constant(machine) == default)


def _made_for_compilers(machine: Machine) -> bool:
    """Return whether a library may have made a mask that it omits in eager."""
    return TAKES_THE_COMPILED_BRANCH in machine.notes.marks


def _is_square(scores: tuple[object, ...]) -> bool:
    """Return whether there are as many queries as keys, so that all kernels agree on "causal"."""
    return scores[-1] == scores[-2] and type(scores[-1]) is int and scores[-1] > 1


def _read(graph: GraphBuilder, node: Node) -> Literal["nothing", "causal"] | None:
    """Return the kind of a mask made of constants; saved, because every layer asks for it."""
    found: tuple[int, Any] = node.meta.get("mask_kind", (-1, None))
    if found[0] != graph.writes.count:
        found = node.meta["mask_kind"] = (graph.writes.count, _come_to(known_mask(graph, node)))
    said: Literal["nothing", "causal"] | None = found[1]
    return said


def _come_to(mask: torch.Tensor | None) -> Literal["nothing", "causal"] | None:
    if mask is None:
        return None
    if bool(mask.all()):
        return "nothing"
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    causal = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "causal" if torch.equal(mask, causal.expand(mask.shape)) else None


def _meta(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _chooses(function: Any) -> None:
    """Register a function that computes attention inside."""

    @handles(function, like=AS_GIVEN)
    def _call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        _guard_choice(machine)
        return record(machine, with_kernels(machine, function), args, kwargs)


for _function in (F.multi_head_attention_forward, self_attention):
    _chooses(_function)


# -- padded batches --------------------------------------------------------------------------------


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

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
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


@handles(nested_from_left_aligned_mask)
def _left_aligned(machine: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Return True whatever the data: the code after it handles both cases."""
    if machine.frame.program.code is not _ENCODER:
        raise GraphBreak(TensorItem.of(what="torch _nested_tensor_from_mask_left_aligned()"))
    # The encoder has taken a branch that is only right together with the padding at its end.
    if machine.frame is machine.root:
        created_at_step = machine.step

        def check(builder: Builder) -> None:
            if machine.stop is not None:
                raise CannotRebuild(
                    "an encoder between its check of a mask and its end", created_at_step
                )

        machine.at_exit(check)
    return machine.constant(True)


@handles(nested_from_mask, like=lambda t, mask, mask_check=True: None)
def _from_mask(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    padded, keep = args[:2]
    if machine.frame.program.code is not _ENCODER or not isinstance(padded, TensorValue):
        return record(machine, nested_from_mask, args, kwargs)
    return _NestedValue(machine, padded, keep)


@handles(transformer_encoder_layer)
def _layer(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    _guard_choice(machine)
    nested = args[0]
    if not isinstance(nested, _NestedValue):
        return record(machine, transformer_encoder_layer, args, kwargs)
    padding = record(machine, torch.logical_not, [nested.keep])
    given = [nested.padded, *args[1:_MASK], padding, machine.constant(_OF_ROWS)]
    made = record(machine, transformer_encoder_layer, given)
    assert isinstance(made, TensorValue)
    return _NestedValue(machine, made, nested.keep)
