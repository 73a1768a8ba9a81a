"""Runs transforms of torch.func while a joint graph is recorded.

In: the target of a node (targets/transforms.py) and traced tensors. Out: its results; the levels of
torch.func end in operations on the traced tensors, which are recorded. torch.func forbids the hooks
from which the trace otherwise learns what autograd saves (saved_tensor_hooks.py). Here saved
tensors are read from the history of the results, and autograd itself checks that they are not
written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.graph import Node as GradNode

from ...compat.autograd import pop_saved_hooks, push_saved_hooks
from ...errors import CompileFailed
from ...graph.linked_history import history_of
from ...graph.node_meta import tensors_in
from ..saved_tensor_hooks import SavedTensorHooks
from .traced import Traced

__all__ = ["transformed"]


def transformed(
    target: Callable[..., tuple[object, ...]], args: Sequence[object], saved: SavedTensorHooks
) -> tuple[object, ...]:
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
def _without(saved: SavedTensorHooks) -> Iterator[None]:
    pop_saved_hooks()
    try:
        yield
    finally:
        push_saved_hooks(saved.pack, saved.unpack)


def _saved(
    tensors: Iterable[torch.Tensor], before: set[GradNode | None]
) -> Iterator[tuple[GradNode, Traced]]:
    """Yield what the nodes between the tensors and the `before` nodes of the history save."""
    for node in history_of(tensors, before.__contains__):
        # `dir`, as the saved values are properties of the node's class, of which each formula has
        # its own.
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from ((node, tensor) for tensor in _traced(_read(node, name)))


def _read(node: GradNode, name: str) -> object:
    try:
        return getattr(node, name)
    except RuntimeError as error:
        # The getter raises by its version check, before any data is read (meta tensors have none).
        raise CompileFailed("a tensor needed for gradient computation was modified") from error


def _traced(value: object) -> Iterator[Traced]:
    return (tensor for tensor in tensors_in(value) if isinstance(tensor, Traced))
