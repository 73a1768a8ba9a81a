"""Transforms of torch.func while a joint graph is recorded.

Comes in: the target of a node (graph/transforms.py) and traced tensors. Goes out: its results: what
torch.func does with the levels ends in operations on the traced tensors, which are recorded as any
others are. torch.func allows no hooks for saved tensors, by which the trace otherwise learns what
autograd keeps (saving.py): here that is read off the history of the results, and autograd itself
checks that nothing it keeps is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import CompileFailed
from ...graph.node_meta import tensors_in
from ..saving import SavedTensors
from .traced import Traced

__all__ = ["transformed"]

_hooks: Any = torch._C._autograd


def transformed(
    target: Callable[..., tuple[Any, ...]], args: Sequence[Any], saved: SavedTensors
) -> tuple[Any, ...]:
    """Call the target without the hooks that are in force; tell them what autograd keeps of the
    call for the backward behind it."""
    before = {tensor.grad_fn for tensor in tensors_in(args)}
    with _without(saved):
        made = target(*args)
        for node, tensor in _saved(tensors_in(made), before):
            saved.of_node(node, tensor)
    return made


@contextmanager
def _without(saved: SavedTensors) -> Iterator[None]:
    _hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        _hooks._push_saved_tensors_default_hooks(saved.keep, saved.fetch)


def _saved(tensors: Iterable[torch.Tensor], before: set[Any]) -> Iterator[tuple[Any, Traced]]:
    """What the nodes keep that lead from the tensors to the history that was there before."""
    seen = {*before, None}
    stack: list[Any] = [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(behind for behind, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from ((node, tensor) for tensor in _traced(_read(node, name)))


def _read(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError as error:
        raise CompileFailed("a tensor needed for gradient computation was modified") from error


def _traced(value: Any) -> Iterator[Traced]:
    return (tensor for tensor in tensors_in(value) if isinstance(tensor, Traced))
