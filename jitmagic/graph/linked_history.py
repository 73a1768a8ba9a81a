"""Gives fresh meta tensors an autograd history that leads to given tensors.

Needed for calls that ran on other tensors than those of the trace, as autocast.py does. Input: the
results of such a call, and the meta tensors of the trace that it was called with. Output: fresh
meta tensors that the autograd engine can differentiate, as often as eager's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node as AutogradNode

from .wrappers.wrapping import Layout, is_wrapper, sizes_of_wrapper

__all__ = ["history_of", "link_history"]


class _Like(NamedTuple):
    """The properties of a tensor to create, and of those inside if it is a wrapper."""

    shape: Sequence[Any]
    stride: Sequence[Any]
    dtype: torch.dtype
    requires_grad: bool
    layout: Layout | None = None
    inner: tuple[_Like, ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Like:
        if not is_wrapper(tensor):
            return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)
        layout = Layout.of(tensor)
        inner = tuple(map(cls.of, layout.inner(tensor)))
        return cls(*sizes_of_wrapper(tensor), tensor.dtype, tensor.requires_grad, layout, inner)

    def make(self) -> torch.Tensor:
        if self.layout is None:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        inner = [one.make() for one in self.inner]
        return self.layout.around(inner, self.shape, self.stride).requires_grad_(False)


class _Link(torch.autograd.Function):
    """Stands in for an operation of which only the results are known. Its backward is a _Link
    again, so that gradients can be differentiated too.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, likes: Sequence[_Like], saves: bool, *sources: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.saves, ctx.sources = saves, list(map(_Like.of, sources))
        ctx.save_for_backward(*(sources if saves else ()))
        made = tuple(like.make() for like in likes)
        pairs = zip(made, likes, strict=True)
        ctx.mark_non_differentiable(*(one for one, like in pairs if not like.requires_grad))
        return made

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor | None) -> tuple[Any, ...]:
        given = [one for one in incoming if one is not None]
        needed = [like for like in ctx.sources if like.requires_grad]
        made = iter(_Link.apply(needed, ctx.saves, *given, *ctx.saved_tensors))
        return None, None, *(next(made) if like.requires_grad else None for like in ctx.sources)


def link_history(
    results: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    histories: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, ...]:
    """Return fresh meta tensors in the layouts of `results`, with a history that leads to
    `sources`. `histories`: tensors that have the results' history, if these do not have it
    themselves.
    """
    likes = list(map(_Like.of, results))
    with torch.inference_mode(False), torch.enable_grad():
        if not any(like.requires_grad for like in likes):
            return tuple(like.make() for like in likes)
        made: tuple[torch.Tensor, ...] = _Link.apply(
            likes, _saves_tensors(histories or results), *sources
        )
        return made


def _saves_tensors(results: Sequence[torch.Tensor]) -> bool:
    """Return whether a second backward raises: a node of the history has saved tensors."""
    return any(name.startswith("_raw_saved") for node in history_of(results) for name in dir(node))


def history_of(
    outputs: Iterable[torch.Tensor], ends: Callable[[AutogradNode], bool] = lambda node: False
) -> dict[AutogradNode, None]:
    """Return the autograd nodes that a backward of the outputs runs. A node for which `ends` is
    true is left out, with the nodes that it leads to.
    """
    seen: dict[AutogradNode, None] = {}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node not in seen and not ends(node):
            seen[node] = None
            waiting += [behind for behind, _ in node.next_functions if behind is not None]
    return seen
