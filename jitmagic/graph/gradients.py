"""`gradients`: what torch.autograd.grad is in a graph, a call of the engine like any other call;
`first_gradient`, `copied_gradient`: what backward() stores in a leaf that has no gradient yet.

Comes in: outputs, inputs and the gradients that come into the outputs, as tensors of any kind with
a history: real ones, meta tensors of the trace, traced ones of the joint trace, which records what
the engine runs. Goes out: a gradient for each input, None where no history leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from .node_meta import tensors_in
from .operators.tensor_iterator import dense
from .propagate import DataDependent

__all__ = [
    "copied_gradient",
    "first_gradient",
    "gradients",
    "history_of",
    "is_spent",
    "is_stale",
    "leaves_behind",
    "refuse_sparse",
]


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
    keep: bool,
    create: bool,
    unused: bool,
    hooked: Sequence[torch.Tensor] = (),
    replaced: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor | None, ...]:
    """As torch.autograd.grad, which imports sympy first (0.3 s) and calls this. `replaced`: what
    hooks have put in the place of the gradients of `hooked`.
    """
    pairs = zip(hooked, replaced, strict=True)
    handles = [tensor.register_hook(lambda _, new=new: new) for tensor, new in pairs]
    try:
        made: Any = torch.autograd.Variable._execution_engine.run_backward(
            tuple(outputs),
            tuple(incoming),
            keep,
            create,
            tuple(inputs),
            allow_unreachable=unused,
            accumulate_grad=False,
        )
    finally:
        for handle in handles:
            handle.remove()
    found: tuple[torch.Tensor | None, ...] = tuple(made)
    return found


def first_gradient(gradient: torch.Tensor, leaf: torch.Tensor, own: bool) -> torch.Tensor:
    """As AccumulateGrad: laid out as the leaf where that is dense, else row by row. What the engine
    made for this leaf alone (`own`) is taken as it is if it lies like that, else it is copied.
    """
    with torch.no_grad():
        if own and _lies_like(gradient, leaf):
            return gradient.detach()
        if leaf.is_contiguous() or not dense(tuple(leaf.shape), leaf.stride()):
            return gradient.clone(memory_format=torch.contiguous_format)
        return torch.empty_like(leaf, memory_format=torch.preserve_format).copy_(gradient)


def copied_gradient(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """As AccumulateGrad under create_graph=True: a copy with a history, laid out as the leaf."""
    if not dense(tuple(leaf.shape), leaf.stride()):
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)


def _lies_like(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Torch's gradient layout contract (accumulate_grad.h): strides of extents 1 do not matter."""
    if not dense(tuple(leaf.shape), leaf.stride()):
        return gradient.is_contiguous()
    sides = zip(leaf.shape, gradient.stride(), leaf.stride(), strict=True)
    return all(extent == 1 or ours == wanted for extent, ours, wanted in sides)


def refuse_sparse(computed: Any) -> None:
    """Raise DataDependent where a gradient is no strided tensor: which rows it has, data decide."""
    if any(tensor.layout is not torch.strided for tensor in tensors_in(computed)):
        raise DataDependent("a gradient is sparse")


def is_spent(result: torch.Tensor) -> bool:
    """Return whether a backward from the tensor raises, as another one has freed a part of its
    history.

    The nodes are asked: to run them needs data that meta tensors lack, or sizes that are ints.
    """
    again = "backward through the graph a second time"
    return any(_refuses_saved(node, again) for node in history_of([result]))


def leaves_behind(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that backward() of the outputs would add gradients to, in the engine's order of
    finding them.
    """
    leaves = {id(t): t for t in outputs if t.grad_fn is None and t.requires_grad}
    for node in history_of(outputs):
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
    return list(leaves.values())


def history_of(outputs: Sequence[torch.Tensor]) -> dict[Any, None]:
    """The nodes of autograd that a backward of the outputs runs."""
    seen: dict[Any, None] = {}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting += [behind for behind, _ in node.next_functions if behind is not None]
    return seen


def is_stale(node: Any) -> bool:
    """Whether a node of autograd has saved a tensor that was written to since: it raises when it
    runs.
    """
    return _refuses_saved(node, "modified by an inplace operation")


def _refuses_saved(node: Any, text: str) -> bool:
    """Return whether reading one of the tensors that it has saved raises an error with this
    text.
    """
    return any(text in _refusal(node, name) for name in _names_of_saved(node.__class__))


@lru_cache(maxsize=4096)
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Nodes of C++ have an attribute for each, those of Python's functions one for all."""
    names = [name for name in dir(kind) if name.startswith("_saved_")]
    return tuple(names) if names or not hasattr(kind, "saved_tensors") else ("saved_tensors",)


def _refusal(node: Any, name: str) -> str:
    """The error of unpacking, which compares versions; "" where there is none."""
    try:
        getattr(node, name)
    except RuntimeError as error:
        return str(error)
    return ""
