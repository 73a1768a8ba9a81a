"""Finds and replaces the nodes and tensors in nested arguments and results.

Input: tuples, lists, dicts and slices. Output: their items, or the same structure with other items.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.fx import Node

from .node_meta import is_number, tensors_in

__all__ = [
    "frozen", "map_leaves", "map_nodes", "map_tensors", "nodes_in", "rebuilt", "tensor_nodes_in",
]  # fmt: skip


def nodes_in(value: object) -> list[Node]:
    found: dict[Node, None] = {}

    def note(node: Node) -> Node:
        found[node] = None
        return node

    map_nodes(value, note)
    return list(found)


def tensor_nodes_in(value: object) -> list[Node]:
    """Return the nodes that stand for tensors, not for sizes or numbers."""
    return [node for node in nodes_in(value) if not is_number(node)]


def map_nodes(value: object, change: Callable[[Node], object]) -> Any:
    """Return the nested arguments with `change(node)` in place of each node."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, dict):
        return {key: map_nodes(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_nodes(item, change) for item in value]
    if type(value) is tuple:
        return tuple(map_nodes(item, change) for item in value)
    if isinstance(value, slice):
        return slice(*(map_nodes(item, change) for item in (value.start, value.stop, value.step)))
    return value


def map_tensors(value: object, change: Callable[[torch.Tensor], object]) -> object:
    """Return the nested result with `change(tensor)` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list) and next(tensors_in(value), None) is not None:
        return rebuilt(value, [map_tensors(item, change) for item in value])
    return value


def map_leaves(value: object, change: Callable[[object], object]) -> Any:
    """Return the nested arguments with `change(item)` in place of each item."""
    if isinstance(value, tuple | list):
        return rebuilt(value, [map_leaves(item, change) for item in value])
    if isinstance(value, dict):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(map_leaves(part, change) for part in (value.start, value.stop, value.step)))
    return change(value)


def frozen(value: object, described: Callable[[object], Hashable]) -> Hashable:
    """Return a hashable form of nested arguments, with `described(item)` for tensors and others for
    which it is not None. Numbers differ by type and by the sign of zero.
    """
    if isinstance(value, dict):
        return tuple((key, frozen(item, described)) for key, item in value.items())
    if isinstance(value, slice):
        value = (slice, value.start, value.stop, value.step)
    if isinstance(value, tuple | list):
        return type(value), tuple(frozen(item, described) for item in value)
    if (special := described(value)) is not None:
        return special
    return type(value), repr(value) if isinstance(value, float | complex) else value


def rebuilt(like: Any, items: list[object]) -> object:
    """Return a sequence of `items` of the class of `like`, which may be a named tuple or one of
    torch.return_types.
    """
    if type(like) in (tuple, list):
        return type(like)(items)
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
