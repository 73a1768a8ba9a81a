"""What autocast keeps behind a call: casts of leaves that the frame has written to.

Comes in: those leaves, before the graph runs within a block that goes on behind the call. Goes out:
their casts in torch's own cache, where what follows in the block finds them as it does in eager.
Invariant: a call that would find the cast of an older value there runs as eager, which takes it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import torch

__all__ = ["OldCast", "keep_cast"]


class OldCast(Exception):
    """The block keeps a cast of what the leaf was before; the frame starts over as eager."""


class _Block(threading.local):
    """The block that goes on: `mark` is a leaf that only torch's cache holds, by the history of its
    cast, so that it is gone when the cache is cleared.
    """

    def __init__(self) -> None:
        self.mark: Callable[[], torch.Tensor | None] = lambda: None
        self.versions: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}


_block = _Block()


def keep_cast(leaf: torch.Tensor) -> None:
    """Have torch keep the cast of a leaf, as the frame's first operation on it does. Raises
    OldCast.
    """
    if _block.mark() is None:
        mark = torch.ones(1, device=leaf.device, requires_grad=True)
        _cast(mark)
        _block.mark, _block.versions = weakref.ref(mark), {}
    same, version = _block.versions.get(id(leaf), (None, 0))
    if same is None or same() is not leaf:
        _cast(leaf)
        _block.versions[id(leaf)] = weakref.ref(leaf), leaf._version
    elif version != leaf._version:
        raise OldCast


def _cast(leaf: torch.Tensor) -> None:
    """By a product of no rows."""
    with torch.enable_grad():
        torch.matmul(leaf.detach().new_empty(0, leaf.shape[-2 if leaf.dim() > 1 else 0]), leaf)
