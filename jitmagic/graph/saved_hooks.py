"""Hooks on tensors that autograd saves, set aside while something is compiled.

Activation checkpointing and offloading put default hooks on the thread; what a trace makes autograd
save are data-less tensors, which the hooks must never see: they count, pack and keep what they are
given. Afterwards the thread has the hooks it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["hooks_set_aside"]

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
Hooks = tuple[Callable[..., Any], Callable[..., Any]]


@contextmanager
def hooks_set_aside() -> Iterator[None]:
    """The thread has no default hooks for saved tensors inside."""
    taken: list[Hooks] = []
    while (hooks := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(hooks)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)
