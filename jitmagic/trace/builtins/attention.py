"""Attention: which kernel it runs is the choice of torch, and of the process's settings.

Comes in: calls of the attention functions. Goes out: a node of the graph, with a guard on each
setting that the choice depends on (`sdpa_kernel`, `torch.backends.cuda.enable_flash_sdp`, the order
of preference); what it depends on otherwise (dtypes, strides, the mask, gradients) is guarded
with the tensors. A mask of bools that can hold nothing but True is left out: libraries make one
only while they are compiled, and broadcast it, so that no fused kernel of a GPU takes it (ViT of
transformers 5.17: 0.45x eager with the mask, 1.10x without).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from ...graph.node_meta import device_of
from ...graph.ranges import always_true
from ..values.base import Args, Kwargs, Machine, Value
from ..values.tensor import TensorValue, record
from .process_state import read_state
from .registry import handles

__all__: list[str] = []

_ORDER = "_get_sdp_priority_order"
_SETTINGS = [  # not every version of torch has each of them
    getter
    for name, getter in vars(torch._C).items()
    if name.startswith("_get_") and "sdp" in name.split("_") and name != _ORDER
]
_MASK = 3  # where scaled_dot_product_attention takes its mask


def _priority_order() -> tuple[int, ...]:
    order: list[int] = getattr(torch._C, _ORDER)()
    return tuple(order)


@cache
def _settle_order() -> None:
    """The first choice that torch makes for a GPU changes the order, once for all."""
    like = torch.empty((1, 1, 8, 64), dtype=torch.bfloat16, device="cuda")  # any kernel takes it
    with suppress(RuntimeError):  # the program has forbidden all that this GPU has
        torch._fused_sdp_choice(like, like, like)


def _guard_choice(machine: Machine) -> None:
    if torch.cuda.is_initialized():
        _settle_order()
    for read in (*_SETTINGS, _priority_order):
        read_state(machine, read)


_attend = F.scaled_dot_product_attention  # this one, whoever takes its name later


@handles(_attend)
def _attention(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    _guard_choice(machine)
    given, named = list(args), dict(kwargs)
    mask = given[_MASK] if len(given) > _MASK else named.get("attn_mask")
    if not isinstance(mask, TensorValue) or not _says_nothing(machine, mask, given, named):
        return record(machine, _attend, given, named)
    if len(given) > _MASK:
        given[_MASK] = machine.constant(None)
    else:
        named["attn_mask"] = machine.constant(None)
    made = record(machine, _attend, given, named)
    if device_of(mask.node).type == "cpu" or _meta(mask.node).stride()[-1:] == (1,):
        return made
    return record(machine, "contiguous", [made])  # as eager's unfused kernel leaves it


def _says_nothing(machine: Machine, mask: TensorValue, given: Args, named: Kwargs) -> bool:
    """Whether eager takes the mask, and attends to everything with it, in the same shape."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    bound = {**dict(zip(names, given, strict=False)), **named}
    query, key, causal = (bound.get(name) for name in ("query", "key", "is_causal"))
    if not isinstance(query, TensorValue) or not isinstance(key, TensorValue):
        return False
    if _meta(mask.node).dtype is not torch.bool or device_of(mask.node) != device_of(query.node):
        return False
    if causal is not None and causal.as_constant(machine) is not False:
        return False  # eager raises
    scores = (*_meta(query.node).shape[:-1], *_meta(key.node).shape[-2:-1])
    shape = _meta(mask.node).shape
    fits = len(shape) <= len(scores) and all(
        extent in (1, wanted)
        for extent, wanted in zip(reversed(shape), reversed(scores), strict=False)
    )
    return fits and always_true(machine.graph, mask.node)


def _meta(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _chooses(function: Any) -> None:
    """A function that attends inside."""

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
