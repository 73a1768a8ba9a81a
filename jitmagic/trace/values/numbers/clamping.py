"""Records clamp by limits that are 0-dim tensors, with the gradient of limits that are numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from ....compat.behaviour import CLAMP_GRADIENT_AT_NUMBER

__all__ = ["clamp"]

_STRICTLY = {"min": "gt", "max": "lt"}


def clamp(
    record: Callable[..., Node], tensor: Node, given: Mapping[str, Node | None], in_place: bool
) -> Node | None:
    """Record clamp(tensor, min, max) by `record(target, *args, **kwargs)`.

    Return None if a limit could not be recorded, or none is given.
    """
    limits = {name: limit for name, limit in given.items() if limit is not None}
    if not limits or len(limits) < len(given):
        return None
    if CLAMP_GRADIENT_AT_NUMBER or not tensor.meta["val"].requires_grad:
        return record("clamp_" if in_place else "clamp", tensor, **limits)
    # Where an element equals its limit, a tensor limit gets half of the gradient; with a number,
    # the element gets none.
    clamped = record("clamp", record("detach", tensor), **limits)
    is_inside = [record(_STRICTLY[name], tensor, limit) for name, limit in limits.items()]
    condition = is_inside[0] if len(is_inside) == 1 else record("logical_and", *is_inside)
    made = record(torch.where, condition, tensor, clamped)
    return record("copy_", tensor, made) if in_place else made
