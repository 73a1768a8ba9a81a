"""Runs a program on tensor subclasses plainly and compiled, and compares all that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

import jitmagic

from ..counts import breaks_of, counts_of, eager_of

BACKENDS = ("native", "aot_eager", "eager")


def parts_of(tensor: Any) -> list[Tensor]:
    """Return the plain tensors inside a tensor."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names = tensor.__tensor_flatten__()[0]
    inner = [getattr(tensor, name) for name in names]
    return [part for one in inner if isinstance(one, Tensor) for part in parts_of(one)]


def assert_same(found: Any, wanted: Any) -> None:
    """Compare structures of tensors: classes, metadata, layouts, flags and numbers."""
    (ours, our_tree), (theirs, their_tree) = tree_flatten(found), tree_flatten(wanted)
    assert our_tree == their_tree
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        if not isinstance(one, Tensor):
            assert one == other
            continue
        facts = [(t.dtype, t.shape, t.stride(), t.requires_grad, t.is_leaf) for t in (one, other)]
        assert facts[0] == facts[1]
        if hasattr(one, "__tensor_flatten__"):
            assert one.__tensor_flatten__()[1] == other.__tensor_flatten__()[1]
        for part, expected in zip(parts_of(one), parts_of(other), strict=True):
            torch.testing.assert_close(part, expected)


def _seed_of(result: Tensor) -> Tensor:
    """Return a gradient in which every element counts differently."""
    size = result.numel()
    weights = torch.linspace(0.5, 1.5, size).reshape(result.shape)
    names, context = (
        result.__tensor_flatten__() if hasattr(result, "__tensor_flatten__") else ((), 0)
    )
    if not names:
        return weights
    inner = {name: weights * (n + 1) for n, name in enumerate(names)}
    made: Tensor = type(result).__tensor_unflatten__(  # type: ignore[attr-defined]
        inner, context, result.shape, result.stride()
    )
    return made


def _observed(program: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
    result = program(*args)
    recorded = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.grad_fn is not None]
    if recorded:
        torch.autograd.backward(recorded, list(map(_seed_of, recorded)))
    leaves = [t for t in tree_leaves(list(args)) if isinstance(t, Tensor) and t.is_leaf]
    return result, list(args), [leaf.grad for leaf in leaves]


def reasons_of(compiled: Callable[..., Any]) -> str:
    """Return the reasons of all graph breaks, and of frames that run as eager."""
    return "; ".join([*breaks_of(compiled), *(why for _, why in eager_of(compiled))])


def check(
    program: Callable[..., Any],
    make: Callable[[int], Sequence[Any]],
    backend: str = "native",
    calls: int = 3,
    graphs: int | None = 1,
) -> Callable[..., Any]:
    """Compare `calls` calls with eager's, on the arguments `make(number of the call)`; `graphs`:
    what the first call compiles, without breaks. Returns the compiled function.
    """
    compiled = jitmagic.jit(program, backend=backend, options={"on_error": "raise"})
    for number in range(calls):
        seen = []
        for each in (compiled, program):
            torch.manual_seed(number)
            seen.append(_observed(each, make(number)))
        assert_same(*seen)
        if not number and graphs is not None:
            assert (breaks_of(compiled), eager_of(compiled)) == ([], [])
            found = counts_of(compiled).graphs
            assert found == graphs
    return compiled
