"""Runs an inference graph with frozen weights: values that depend on weights alone are cached.

Input: the two executables of autograd/freezing.py. Output: an executable of the whole. A call
compares the weights with those of the last call, by identity and version counter, and recomputes
the values if one has changed. Only writes past the counter (.data, numpy arrays that share memory)
go unnoticed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from ..autograd.freezing import Frozen
from ..guards.source import Item, Source
from ..torch_types import Executable
from ..trace.result import GraphInput

__all__ = ["FrozenExecutable", "frozen_places"]


def frozen_places(inputs: Sequence[GraphInput]) -> frozenset[int]:
    """Return the positions of inputs that are parameters and buffers of modules."""
    return frozenset(n for n, entry in enumerate(inputs) if _is_of_module(entry.source))


def _is_of_module(source: Source) -> bool:
    owner = source.base if isinstance(source, Item) else None
    return isinstance(owner, Item) and owner.key in ("_parameters", "_buffers")


class FrozenExecutable:
    """Calls `rest` with its inputs and the cached values of the weights."""

    def __init__(self, folded: Executable, rest: Executable, parts: Frozen) -> None:
        self._folded, self._rest = folded, rest
        self._weights, self._inputs = parts.weights, parts.inputs
        # One attribute, replaced at once: other threads never see versions of other values.
        self._known: tuple[list[torch.Tensor], list[int], tuple[object, ...]] = [], [], ()

    def __call__(self, *inputs: torch.Tensor) -> tuple[object, ...]:
        current = [inputs[n] for n in self._weights]
        weights, known, values = self._known
        try:
            versions = [tensor._version for tensor in current]
        except RuntimeError:  # an inference tensor, whose writes nothing counts
            known, versions = [], [-1]
        if versions != known or not all(map(operator.is_, current, weights)):
            values = tuple(self._folded(*current))
            self._known = current, versions, values
        return self._rest(*[inputs[n] for n in self._inputs], *values)
