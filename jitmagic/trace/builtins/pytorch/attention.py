"""Scaled dot-product attention, whose kernel torch chooses by arguments and process settings.

A call becomes a node, with a guard on each setting that the choice depends on (`sdpa_kernel`,
`torch.backends.cuda.enable_flash_sdp`, the order of preference). The other conditions (dtypes,
strides, the mask, gradients) are guarded with the tensors.

A bool mask that can hold nothing but True is dropped, and a known causal mask becomes `is_causal`.
Libraries make both only while they are compiled, and broadcast them, so that fused GPU kernels
refuse them (ViT of transformers 5.17: 0.45x eager with the mask, 1.10x without) or compute masked
blocks (OPT: 20.5 ms instead of 13.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.node_meta import device_of
from ....graph.symbolic.known import known_mask
from ....graph.symbolic.ranges import always_true
from ....symbols.context import Specialize
from ....symbols.size import hintless
from ...restarts import TAKES_THE_COMPILED_BRANCH
from ...values.base import Args, Kwargs, Machine, Value
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles
from .process_state import read_state

__all__: list[str] = []

_ORDER = "_get_sdp_priority_order"
_SETTINGS = [  # not every version of torch has each of them
    getter
    for name, getter in vars(torch._C).items()
    if name.startswith("_get_") and "sdp" in name.split("_") and name != _ORDER
]
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _priority_order() -> tuple[int, ...]:
    order: list[int] = getattr(torch._C, _ORDER)()
    return tuple(order)


@cache
def _settle_order() -> None:
    """Fix the order of kernels: torch's first choice on a GPU changes it, once for all."""
    like = torch.empty((1, 1, 8, 64), dtype=torch.bfloat16, device="cuda")  # any kernel takes it
    with suppress(RuntimeError):  # the program has disabled all kernels that this GPU has
        torch._fused_sdp_choice(like, like, like)


def _guard_choice(machine: Machine) -> None:
    if torch.cuda.is_initialized():
        _settle_order()
    for read in (*_SETTINGS, _priority_order):
        read_state(machine, read)


_attend = F.scaled_dot_product_attention  # this object, even if it is replaced later


@handles(_attend)
def _attention(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    _guard_choice(machine)
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    mask = given.get("attn_mask")
    said = _said_by(machine, mask, given) if isinstance(mask, TensorValue) else None
    if said is None or not isinstance(mask, TensorValue):
        return record(machine, _attend, args, kwargs)
    given["attn_mask"] = machine.constant(None)
    if said == "causal":
        given["is_causal"] = machine.constant(True)
    tensors = [given.pop(name) for name in _PARAMETERS[:3]]
    made = record(machine, _attend, tensors, given)
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


def _is_square(scores: tuple[Any, ...]) -> bool:
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

    @handles(function)
    def _call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        _guard_choice(machine)
        return record(machine, function, args, kwargs)


for _function in (
    F.multi_head_attention_forward,
    torch._native_multi_head_attention,
    torch._transformer_encoder_layer_fwd,
):
    _chooses(_function)
