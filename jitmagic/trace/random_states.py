"""Reads and restores the states of random number generators of Python, numpy and torch.

When a graph raises, eager runs the frame again from its start. Before that, the generators that the
frame drew from are reset, and `requires_grad` of arguments that it changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

__all__ = ["Seeding", "set_states", "states_of"]

States = list[Callable[[], object]]


class Seeding(NamedTuple):
    """Generators that are seeded before the graph runs, and the seed."""

    generators: tuple[Any, ...]
    number: Any


def states_of(*generators: Any) -> States:
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
