"""Runs transforms of torch.func while a joint graph is recorded.

In: the target of a node (graph/transforms.py) and traced tensors. Out: its results; the levels of
torch.func end in operations on the traced tensors, which are recorded. torch.func forbids the
saved-tensor hooks from which the trace otherwise learns what autograd saves (saving.py). Here saved
tensors are read from the history of the results, and autograd itself checks that they are not
written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...compat.autograd import pop_saved_hooks, push_saved_hooks
from ...errors import CompileFailed
from ...graph.node_meta import tensors_in
from ..saving import SavedTensors
from .traced import Traced

__all__ = ["transformed"]


def transformed(
    target: Callable[..., tuple[Any, ...]], args: Sequence[Any], saved: SavedTensors
) -> tuple[Any, ...]:
    """Call the target with the saved-tensor hooks removed, then report to `saved` what autograd
    saved.
    """
    # Nodes of the arguments' history have been reported when they were created.
    before = {tensor.grad_fn for tensor in tensors_in(args)}
    with _without(saved):
        made = target(*args)
        for node, tensor in _saved(tensors_in(made), before):
            saved.record_of_node(node, tensor)
    return made


@contextmanager
def _without(saved: SavedTensors) -> Iterator[None]:
    pop_saved_hooks()
    try:
        yield
    finally:
        push_saved_hooks(saved.pack, saved.unpack)


def _saved(tensors: Iterable[torch.Tensor], before: set[Any]) -> Iterator[tuple[Any, Traced]]:
    """Yield what the nodes between the tensors and the `before` nodes of the history save."""
    seen = {*before, None}
    stack: list[Any] = [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(parent for parent, _ in node.next_functions)
        # `dir`, as the saved values are properties of the node's class, of which each formula has
        # its own.
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from ((node, tensor) for tensor in _traced(_read(node, name)))


def _read(node: object, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError as error:
        # The getter raises by its version check, before any data is read (meta tensors have none).
        raise CompileFailed("a tensor needed for gradient computation was modified") from error


def _traced(value: object) -> Iterator[Traced]:
    return (tensor for tensor in tensors_in(value) if isinstance(tensor, Traced))
