"""Binds torch's functions on nested containers."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from .table import private

__all__ = [
    "SUPPORTED_NODES",
    "keystr",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "treespec_dumps",
]

SUPPORTED_NODES: Container[type] = private("torch.utils._pytree.SUPPORTED_NODES")
tree_flatten: Callable[..., tuple[list[Any], Any]] = private("torch.utils._pytree.tree_flatten")
tree_unflatten: Callable[..., Any] = private("torch.utils._pytree.tree_unflatten")
tree_map: Callable[..., Any] = private("torch.utils._pytree.tree_map")
tree_leaves: Callable[..., list[Any]] = private("torch.utils._pytree.tree_leaves")
tree_flatten_with_path: Callable[..., tuple[list[tuple[Any, Any]], Any]] = private(
    "torch.utils._pytree.tree_flatten_with_path"
)
keystr: Callable[[Any], str] = private("torch.utils._pytree.keystr")
treespec_dumps: Callable[..., str] = private("torch.utils._pytree.treespec_dumps")
