"""Reads the examples that say for which calls a program is saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch

from ..compat.pytree import tree_map
from ..errors import UsageError
from ..frame.declared_dynamic import mark_dynamic

__all__ = ["Arguments", "calls_of", "with_copies", "with_marks"]

_COPIED = (torch.Tensor, torch.nn.Parameter)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of(examples: Sequence[Any]) -> list[Arguments]:
    """Return (arguments, keywords) of each call."""
    if not examples:
        raise UsageError("no arguments of a call are given, as in save(f, path, x) or aot(f)(x)")
    if all(type(one) in (tuple, dict) for one in examples):
        return [((), one) if type(one) is dict else (one, {}) for one in examples]
    return [(tuple(examples), {})]


def with_copies(call: Arguments, tensors: Sequence[torch.Tensor]) -> Arguments:
    """Return the call with a copy of each of the tensors, in containers too. Results of operations
    with a history, and tensors of other classes, stay.
    """
    copies = {id(one): _copy(one) for one in tensors if one.is_leaf and type(one) in _COPIED}
    made: Arguments = tree_map(lambda leaf: copies.get(id(leaf), leaf), call)
    return made


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the layout, the values and the marks of another one."""
    with torch.no_grad():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(tensor)
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=False)
    vars(made).update(vars(tensor))
    return made.requires_grad_(tensor.requires_grad)


def with_marks(fn: Callable[..., Any], call: Arguments, dynamic: Mapping[str, Any]) -> Arguments:
    """Return the call with tensors whose dimensions are marked as `dynamic` names them, like
    `{"x": {0: (2, 64), 1: None}}` or `{"x": ...}`. The caller's tensors get no mark.
    """
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    bound = inspect.signature(called).bind(*call[0], **call[1])
    for name, dims in dynamic.items():
        tensor = bound.arguments.get(name)
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"dynamic names {name!r}, which is no tensor argument of the example")
        marked = bound.arguments[name] = tensor.detach()
        every = dict.fromkeys(range(tensor.dim()))
        for dim, bounds in (every if isinstance(dims, EllipsisType) else dims).items():
            low, high = bounds or (None, None)
            mark_dynamic(marked, dim, min=low, max=high)
    return bound.args, bound.kwargs
