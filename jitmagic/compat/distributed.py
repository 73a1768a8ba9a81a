"""Binds functions of torch.distributed at their first use: importing them takes 23 ms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from .table import private

__all__ = [
    "async_class",
    "broadcast",
    "coalesced_form",
    "coalescing_manager",
    "current_mesh",
    "default_store",
    "gradient_bucket",
    "group_named",
    "in_place_forms",
    "is_coalescing",
    "is_fully_sharded",
    "make_async",
    "mesh_collectives",
    "placed_class",
    "redistribution",
    "reductions",
    "same_placement",
    "sharding_propagator",
    "sizes_of_placed",
    "uses_placements",
    "wait",
]

_MODULE = "torch.distributed._functional_collectives"
_IN_PLACE = {
    "all_reduce": "all_reduce_inplace",
    "all_gather": "all_gather_inplace",
    "all_gather_into_tensor": "all_gather_tensor_inplace",
    "reduce_scatter_tensor": "reduce_scatter_tensor_inplace",
    "all_to_all_single": "all_to_all_inplace",
}


@cache
def in_place_forms() -> dict[str, Callable[..., Any]]:
    """Return, for names of torch.distributed, the functional collective followed by a copy."""
    return {name: private(f"{_MODULE}.{form}") for name, form in _IN_PLACE.items()}


_COALESCED = {
    "all_reduce": "all_reduce_coalesced",
    "all_gather_into_tensor": "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
}


@cache
def coalesced_form(name: str) -> Callable[..., Any]:
    """Return the functional collective of several tensors for a name of torch.distributed."""
    found: Callable[..., Any] = private(f"{_MODULE}.{_COALESCED[name]}")
    return found


@cache
def coalescing_manager() -> Callable[..., Any]:
    """Return the function that makes a block in which collectives are gathered into one."""
    found: Callable[..., Any] = private("torch.distributed.distributed_c10d._coalescing_manager")
    return found


@cache
def reductions() -> Mapping[Any, str]:
    """Return the names of the reductions in functional collectives."""
    found: Mapping[Any, str] = private(f"{_MODULE}.REDUCE_OP_TO_STR")
    return found


@cache
def broadcast() -> Callable[..., Any]:
    """Return the functional broadcast from a rank of the group."""
    found: Callable[..., Any] = private(f"{_MODULE}.broadcast")
    return found


@cache
def _resolver() -> Callable[[str], Any]:
    found: Callable[[str], Any] = private(
        "torch.distributed.distributed_c10d._resolve_process_group"
    )
    return found


def group_named(name: str) -> Any:
    """Return the process group of this name."""
    return _resolver()(name)


@cache
def async_class() -> type:
    """Return the class of results that eager waits for at their first use."""
    found: type = private(f"{_MODULE}.AsyncCollectiveTensor")
    return found


@cache
def _maker() -> Callable[..., Any]:
    found: Callable[..., Any] = private(f"{_MODULE}._maybe_wrap_tensor")
    return found


def make_async(tensor: torch.Tensor) -> Any:
    """Return the tensor as such a result."""
    return _maker()(tensor)


@cache
def wait() -> Callable[..., Any]:
    """Return the function that waits for such a result."""
    found: Callable[..., Any] = private(f"{_MODULE}.wait_tensor")
    return found


_RUNNING = "torch.nn.parallel.distributed.DistributedDataParallel._get_active_ddp_module"


@cache
def _running_module() -> Callable[[], Any]:
    found: Callable[[], Any] = private(_RUNNING)
    return found


def gradient_bucket() -> int | None:
    """Return how many bytes of gradients the DistributedDataParallel that is running reduces at
    once; None if none is running.
    """
    module = _running_module()()
    return None if module is None else int(module.bucket_bytes_cap)


@cache
def _store_getter() -> Callable[[], Any]:
    found: Callable[[], Any] = private("torch.distributed.distributed_c10d._get_default_store")
    return found


def default_store() -> Any:
    """Return the store of the default process group."""
    return _store_getter()()


@cache
def _world() -> Any:
    return private("torch.distributed.distributed_c10d._world")


def is_coalescing() -> bool:
    """Return whether collectives of some group are being gathered into one."""
    return bool(_world().pg_coalesce_state)


def is_fully_sharded(module: object) -> bool:
    """Return whether a module got hooks from FSDP2's `fully_shard`."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


_PLACED = "torch.distributed.tensor"
_PLANS = f"{_PLACED}._redistribute"


def uses_placements() -> bool:
    """Return whether the process has imported DTensor, which takes 0.6 s."""
    return f"{_PLACED}._api" in sys.modules


def placed_class() -> Any:
    """Return DTensor; None if the process has not imported it."""
    return _placed_class() if uses_placements() else None


@cache
def _placed_class() -> Any:
    return private(f"{_PLACED}._api.DTensor")


def same_placement(spec: object, local: torch.Tensor) -> torch.Tensor:
    """Return a DTensor around a tensor. No Python runs: `__init__` would check the metadata."""
    made: torch.Tensor = _placed_class().__new__(_placed_class(), local, spec, requires_grad=False)
    return made


@cache
def sharding_propagator() -> Any:
    """Return the object that chooses the placements of the results of DTensor operations."""
    return _placed_class()._op_dispatcher.sharding_propagator


@cache
def redistribution() -> Any:
    """Return the module that plans changes of placements, whose functions call each other there."""
    return private(_PLANS)


@cache
def _open_meshes() -> Any:
    return private("torch.distributed.device_mesh._mesh_resources")


def current_mesh() -> Any:
    """Return the mesh of the innermost `with mesh:` block; None outside of any."""
    stack = _open_meshes().mesh_stack
    return stack[-1] if stack else None


@cache
def mesh_collectives() -> tuple[tuple[Any, str], ...]:
    """Return (module, name) of the in-place collectives over a dimension of a mesh: each module
    that calls one has a name of its own for it.
    """
    api, placements = private(f"{_PLACED}._api"), private(f"{_PLACED}.placement_types")
    return (
        (api, "mesh_broadcast"),
        (placements, "mesh_broadcast"),
        (placements, "mesh_scatter"),
    )


@cache
def sizes_of_placed() -> type:
    """Return the class of the sizes and the dtype in the metadata of a DTensor."""
    found: type = private(f"{_PLACED}._dtensor_spec.TensorMeta")
    return found
