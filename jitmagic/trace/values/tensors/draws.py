"""Makes tensors that Python computes before the graph runs inputs of the graph.

Such a draw (`effects.draw`) runs at each call: a random array, a scalar of numpy, a cached tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from ....guards.source import Source
from ....spec import TensorSpec
from ...breaks import GraphBreak
from ...result import InputKind
from ..base import Machine, Value
from .tensor import TensorValue, record

__all__ = ["constant_argument", "drawn_tensor"]

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout)


def constant_argument(machine: Machine, value: Value, broken: GraphBreak) -> Any:
    """Return a constant argument of a draw, or raise `broken`.

    A symbolic size breaks too, instead of being specialised: a graph for all sizes is worth more.
    """
    real = value.realize(machine)
    parts = [real, *(part.realize(machine) for part in real.parts())]
    if any(part.varies for part in parts) or not real.is_constant(machine):
        raise broken
    found = real.as_constant(machine)
    items = found if isinstance(found, list | tuple) else (found,)
    if not all(type(item) in _PLAIN or isinstance(item, type) for item in items):
        raise broken
    return found


def drawn_tensor(machine: Machine, name: str, source: Source, spec: TensorSpec) -> TensorValue:
    """Return a copy of the drawn array in the graph, which shares no memory with Python."""
    node = machine.notes.add_input(name, source, spec, InputKind.DRAWN)
    copy = record(machine, "clone", [TensorValue(node, torch.Tensor)])
    assert isinstance(copy, TensorValue)
    return copy
