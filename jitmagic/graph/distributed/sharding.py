"""Lets torch choose the placements of DTensors that have symbolic sizes.

torch caches what it chooses and plans by the sizes, and SymInts have no hash; it infers the global
sizes of a result by fake tensors of its own, which know no symbols of jitmagic. In the block, calls
with symbolic sizes are computed without these caches, on meta tensors. What torch asks about sizes,
such as whether a dimension divides evenly or which plan costs less, becomes a guard.

Some functions of DTensor write what other ranks send to a tensor in place, and communicate when
they are called. In the block they are operators whose result is copied to that tensor.

The functions are replaced for all threads; with ints, and in threads that trace nothing, they do
what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch

from ...compat.distributed import (
    broadcast,
    mesh_collectives,
    redistribution,
    sharding_propagator,
    sizes_of_placed,
    uses_placements,
)
from ...compat.modes import dispatch_mode_at, dispatch_mode_depth, without_dispatch_modes
from ...torch_types import AnyFunction, OpOverload
from ..dispatch_mode import DispatchMode
from .rooted import rooted_operator

__all__ = ["Infer", "placements_of_symbols"]

Infer = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], object]
"""Runs an operator on meta tensors, outside of all dispatch modes."""


class _Replaced:
    """The functions that are replaced while a thread is in a block."""

    def __init__(self) -> None:
        self._lock, self._blocks = Lock(), 0
        self._before: list[tuple[Any, str, Any]] = []

    def enter(self, infer: Infer) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                for owner, name, function in _replacements(infer):
                    self._before.append((owner, name, vars(owner).get(name)))
                    setattr(owner, name, function)

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            while not self._blocks and self._before:
                owner, name, before = self._before.pop()
                if before is None:  # a method, which the class has
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)


_REPLACED = _Replaced()


@contextmanager
def placements_of_symbols(infer: Infer) -> Iterator[None]:
    """Let DTensors have symbolic sizes in the block, and be made by nodes that communicate."""
    if not uses_placements():
        yield
        return
    _REPLACED.enter(infer)
    try:
        yield
    finally:
        _REPLACED.leave()


def _replacements(infer: Infer) -> Iterator[tuple[Any, str, AnyFunction]]:
    """Yield (owner, name, function) of the functions that hash sizes, make fake tensors or
    communicate.
    """
    chooser, plans = sharding_propagator(), redistribution()
    on_meta = partial(_global_sizes, infer)
    for owner, name, otherwise in (
        (chooser, "propagate_op_sharding", chooser.propagate_op_sharding_non_cached),
        (chooser, "_propagate_tensor_meta_non_cached", on_meta),
        (chooser, "_propagate_tensor_meta_cached", on_meta),
        (plans, "_gen_transform_infos", plans._gen_transform_infos_non_cached),
        (plans, "get_redistribute_planner", plans.DTensorRedistributePlanner),
    ):
        yield owner, name, _if_symbolic(otherwise, getattr(owner, name))
    for module, name in mesh_collectives():
        yield module, name, _if_traced(_RECORDED[name], getattr(module, name))


def _if_traced(then: AnyFunction, otherwise: AnyFunction) -> AnyFunction:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (then if _is_tracing() else otherwise)(*args, **kwargs)

    return call


def _is_tracing() -> bool:
    """Return whether this thread runs a program without its data."""
    return any(isinstance(dispatch_mode_at(n), DispatchMode) for n in range(dispatch_mode_depth()))


def _broadcast(
    tensor: torch.Tensor,
    mesh: Any,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> None:
    tensor.copy_(broadcast()(tensor, group_src, mesh.get_group(mesh_dim)))


def _scatter(
    output: torch.Tensor,
    scatter_list: list[torch.Tensor],
    mesh: Any,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> None:
    group = mesh.get_group(mesh_dim)
    parts = scatter_list if group.rank() == group_src else []
    output.copy_(rooted_operator("scatter")(output, parts, group_src, group.group_name))


_RECORDED: dict[str, AnyFunction] = {"mesh_broadcast": _broadcast, "mesh_scatter": _scatter}


def _if_symbolic(then: AnyFunction, otherwise: AnyFunction) -> AnyFunction:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (then if _is_symbolic((args, kwargs)) else otherwise)(*args, **kwargs)

    return call


_SCHEMA = ("tensor_meta", "args_schema", "kwargs_schema")  # metadata of DTensors, of a call


def _is_symbolic(value: Any) -> bool:
    """Return whether a symbol is among nested arguments, in metadata of DTensors too."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return True
    if isinstance(value, dict):
        return any(map(_is_symbolic, value.values()))
    inside = value if isinstance(value, tuple | list) else (getattr(value, n, ()) for n in _SCHEMA)
    return any(map(_is_symbolic, inside))


def _global_sizes(infer: Infer, schema: Any) -> Any:
    """Return the sizes of the results as if no tensor were divided."""
    with without_dispatch_modes():  # one of those shows meta tensors as being on other devices
        args, kwargs = _undivided(tuple(schema.args_schema)), _undivided(schema.kwargs_schema)
    made = infer(schema.op, args, kwargs)
    return type(made)(map(_sizes, made)) if isinstance(made, tuple | list) else _sizes(made)


def _sizes(made: object) -> Any:
    if not isinstance(made, torch.Tensor):
        return None
    return sizes_of_placed()(made.shape, made.stride(), made.dtype)


def _undivided(value: Any) -> Any:
    """Return nested arguments with a meta tensor of the global sizes in place of each spec."""
    if (sizes := getattr(value, "tensor_meta", None)) is not None:
        return torch.empty_strided(sizes.shape, sizes.stride, dtype=sizes.dtype, device="meta")
    if type(value) in (tuple, list):
        return type(value)(map(_undivided, value))
    if isinstance(value, dict):
        return {key: _undivided(one) for key, one in value.items()}
    return value
