"""Tensors whose values the trace knows: those that it made of constants alone.

Comes in: a node of a graph under construction. Goes out: the tensor that eager would have there, or
None. It is computed here, on the CPU, by the calls that lead to it: a mask that a library makes and
then asks about, a size that is kept in a tensor. Inputs, draws, uninitialised memory, tensors that
somebody writes to, symbolic sizes and calls that are not torch's own are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from .builder import GraphBuilder
from .dispatch_mode import DispatchMode
from .foreign import is_random_op
from .nested import map_nodes
from .node_meta import device_of
from .ranges import known_name

__all__ = ["known_number", "known_value"]

_MOST_NODES = 64  # computed for one answer: it is asked while the program is traced
_MOST_ELEMENTS = 1 << 16


class _Unknown(Exception):
    """Some part of it is none of ours."""


class _Pure(DispatchMode):
    """Lets through what has one result, whoever calls it and when."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if is_random_op(func) or "empty" in func._schema.name:
            raise _Unknown
        return func(*args, **(kwargs or {}))


def known_value(graph: GraphBuilder, node: Node) -> torch.Tensor | None:
    """The tensor at a node as of now, if it lies on the CPU and the trace knows its values."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or graph.modes_vary:
        return None
    known: dict[Node, Any] = {}
    try:
        with torch.no_grad(), _Pure():
            found: torch.Tensor = _computed(graph, node, known)
    except Exception:  # eager may raise whatever it likes: it will be asked again then
        return None
    return found


def known_number(graph: GraphBuilder, node: Node) -> bool | int | float | None:
    """The one number in it."""
    if node.meta["val"].numel() != 1 or (value := known_value(graph, node)) is None:
        return None
    number: bool | int | float | complex = value.item()
    return None if isinstance(number, complex) else number


def _computed(graph: GraphBuilder, node: Node, known: dict[Node, Any]) -> Any:
    if node in known:
        return known[node]
    if len(known) >= _MOST_NODES or not _is_plain(graph, node):
        raise _Unknown
    read = lambda part: _computed(graph, part, known)  # noqa: E731 - an argument, not a name
    args, kwargs = map_nodes((node.args, node.kwargs), read)
    if isinstance(node.target, str):
        made = getattr(args[0], node.target)(*args[1:], **kwargs)
    else:
        made = node.target(*args, **kwargs)  # type: ignore[operator]
    if isinstance(made, torch.Tensor):
        _check(node.meta["val"], made)
    known[node] = made
    return made


def _is_plain(graph: GraphBuilder, node: Node) -> bool:
    """A call of torch's that draws and writes nothing, of parts that are constants or nodes."""
    if node.op not in ("call_function", "call_method") or not known_name(node.target):
        return False
    if node.graph is not graph.graph or node.meta.get("random") or node.meta.get("mutates"):
        return False
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return True
    if any(type(size) is not int for size in value.shape) or device_of(node).type != "cpu":
        return False
    if value.numel() > _MOST_ELEMENTS:
        return False
    return not graph.writers.get(value.untyped_storage()._cdata)


def _check(meta: torch.Tensor, made: torch.Tensor) -> None:
    """What a call gives here is what the graph will have: autocast may say otherwise."""
    if (made.dtype, made.shape, made.device.type) != (meta.dtype, meta.shape, "cpu"):
        raise _Unknown
