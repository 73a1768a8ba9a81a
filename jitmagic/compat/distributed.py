"""Binds functions of torch.distributed at their first use: importing them takes 23 ms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from .table import private

__all__ = ["in_place_forms", "reductions"]

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


@cache
def reductions() -> Mapping[Any, str]:
    """Return the names of the reductions in functional collectives."""
    found: Mapping[Any, str] = private(f"{_MODULE}.REDUCE_OP_TO_STR")
    return found
