"""Records calls under a default dtype that the program set itself (torch.set_default_dtype).

Input: a call that is about to be recorded, and the dtype. Output: a call with the same result
under any default, because a graph is compiled and run under the default at its entry. Only calls
without a floating-point argument depend on the default: factories get an explicit dtype, integers
are cast before pointwise arithmetic, as TensorIterator casts them. For other calls FollowsDefault
is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node

from ..operators.operation import is_in_place, operation
from .devices import place
from .nested import map_nodes, tensor_nodes_in
from .node_meta import device_of, tensors_in
from .propagate import EagerRaises, run_on_meta
from .symbolic.sym_node import as_torch
from .target_names import Target, target_name

__all__ = ["FollowsDefault", "spelled_out"]

Arguments = tuple[tuple[object, ...], dict[str, object]]


class FollowsDefault(Exception):
    """Raised if the result depends on the default dtype and no argument can say so."""


def spelled_out(
    call: Callable[..., Node], target: Target, given: Arguments, dtype: torch.dtype
) -> Arguments:
    """Return arguments with which the call gives the same result under any default dtype as it now
    gives under `dtype`. `call(target, args)` records the casts that are needed.
    """
    nodes = tensor_nodes_in(given)
    if any(_is_inexact(node.meta["val"].dtype) for node in nodes) or _is_in_place(target, given):
        return given
    wanted = _results(target, given, dtype)
    if _results(target, given, torch.get_default_dtype()) == wanted:
        return given
    args, kwargs = given
    made = wanted[0] if len(wanted) == 1 else None
    if made is not None and kwargs.get("dtype") is None:
        named = args, {**kwargs, "dtype": made[0]}
        if _gives(target, named, wanted):
            return named
    if operation(target_name(target)).promotion in ("common", "floating"):
        casts = {node: call("to", (node, dtype)) for node in nodes}
        cast: Arguments = map_nodes(given, lambda node: casts.get(node, node))
        if casts and _gives(target, cast, wanted):
            return cast
    raise FollowsDefault(target_name(target))


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _is_in_place(target: Target, given: Arguments) -> bool:
    """Return whether the result's dtype is that of a written tensor."""
    name = target_name(target)
    assigns = is_in_place(name) or name in ("setitem", "__setitem__")
    return assigns or given[1].get("out") is not None


def _gives(target: Target, given: Arguments, wanted: Sequence[object]) -> bool:
    try:
        return _results(target, given, torch.get_default_dtype()) == wanted
    except EagerRaises:
        return False


def _results(target: Target, given: Arguments, dtype: torch.dtype) -> list[Any]:
    """Return (dtype, shape) of each tensor that a call returns under a default dtype; for a call
    that returns none, the text of its result.
    """
    devices: dict[int, torch.device] = {}

    def stand_in(node: Node) -> object:
        value = as_torch(node.meta["val"])
        made = value.detach() if isinstance(value, torch.Tensor) else value
        devices[id(made)] = device_of(node)
        return made

    args, kwargs = map_nodes(given, stand_in)
    placed = place(target_name(target), args, kwargs, lambda tensor: devices[id(tensor)])
    with _default(dtype):
        value = run_on_meta(placed.method or target, placed.args, placed.kwargs, grad=False)
    found: list[object] = [(tensor.dtype, tensor.shape) for tensor in tensors_in(value)]
    return found or [repr(value)]


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype, which is process-wide, for one call on meta tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
