"""State of the thread that emitted code sets before a graph runs, or restores if the graph raises.

When a graph raises, eager runs the frame again from its start. Before that, the random number
generators (of Python, numpy and torch) that the frame drew from are reset, and `requires_grad` of
arguments that it changed.

If an autocast block is still open after the call, eager leaves the cast of each leaf in torch's
cache, and later reads use that cast even if the frame has written to the leaf. The emitted code
fills the cache before the graph runs. Invariant: a call that would find an outdated cast in the
cache runs as eager, which uses that cast.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

__all__ = ["OutdatedCast", "Seeding", "cache_cast", "set_states", "states_of"]


# -- states to restore -----------------------------------------------------------------------------


States = list[Callable[[], object]]


class Seeding(NamedTuple):
    """Generators that are seeded before the graph runs, and the seed."""

    generators: tuple[object, ...]
    number: object


def states_of(*generators: object) -> States:
    """Return functions that restore the current states; see `set_states`."""
    return [_setter(generator) for generator in generators]


def set_states(states: States) -> None:
    for put_back in states:
        put_back()


def _setter(generator: Any) -> Callable[[], object]:
    if isinstance(generator, Seeding):
        return partial(set_states, states_of(*generator.generators))
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, torch.Tensor):
        return partial(generator.requires_grad_, generator.requires_grad)
    if hasattr(generator, "set_state"):  # numpy.random.RandomState
        return partial(generator.set_state, generator.get_state(legacy=False))
    if not hasattr(generator, "bit_generator"):  # a cached function returns the same result again
        return lambda: None
    bits = generator.bit_generator
    return partial(setattr, bits, "state", bits.state)


# -- autocast cache entries that outlive the frame -------------------------------------------------


class OutdatedCast(Exception):
    """The cache holds a cast of an older value of the leaf; the frame starts over as eager."""


class _Block(threading.local):
    """The casts made in the open autocast block of this thread, by the id of the leaf.

    torch does not say when it clears its cache. `mark` is a weak reference to a leaf that only the
    cache keeps alive (through the history of its cast), so it dies when the cache is cleared.
    """

    def __init__(self) -> None:
        self.mark: Callable[[], torch.Tensor | None] = lambda: None
        self.versions: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}


_block = _Block()


def cache_cast(leaf: torch.Tensor) -> None:
    """Have torch cache the cast of a leaf, as its first use does in eager. Raises OutdatedCast."""
    if _block.mark() is None:
        mark = torch.ones(1, device=leaf.device, requires_grad=True)
        _cast(mark)
        _block.mark, _block.versions = weakref.ref(mark), {}
    same, version = _block.versions.get(id(leaf), (None, 0))
    if same is None or same() is not leaf:
        _cast(leaf)
        _block.versions[id(leaf)] = weakref.ref(leaf), leaf._version
    elif version != leaf._version:
        raise OutdatedCast


def _cast(leaf: torch.Tensor) -> None:
    """Cast the leaf by a matrix product without rows, which computes nothing."""
    with torch.enable_grad():
        # torch offers no call that fills the cache alone. Autocast casts the operands of a product,
        # and caches the cast of a leaf that requires grad.
        torch.matmul(leaf.detach().new_empty(0, leaf.shape[-2 if leaf.dim() > 1 else 0]), leaf)
