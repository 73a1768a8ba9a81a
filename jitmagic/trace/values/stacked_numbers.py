"""`torch.tensor([lr, 1.0])` of numbers that vary or were read: one beside the other in the graph.

Comes in: what torch.tensor is given. Goes out: the tensor, or None where no item is such a number,
or where there is something else than ints and floats. Sizes alone need none of this: a list of them
is an argument as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from .base import Machine, Value
from .operators import is_none
from .scalars import ScalarValue, scalar_of
from .sequences import ListValue, TupleValue
from .tensor import record

__all__ = ["stacked_numbers"]

_OPTIONS = {"dtype", "device"}
_MOST = 64  # each is a node of the graph


def stacked_numbers(machine: Machine, value: Value, options: Mapping[str, Value]) -> Value | None:
    """What `torch.tensor(value, **options)` is."""
    real = value.realize(machine)
    shape = _shape(machine, real)
    if not shape or not options.keys() <= _OPTIONS:
        return None
    leaves = list(_leaves(machine, real))
    if not any(isinstance(leaf, ScalarValue) for leaf in leaves):
        return None
    numbers = [scalar for leaf in leaves if (scalar := scalar_of(machine, leaf)) is not None]
    if len(numbers) < len(leaves):
        return None
    is_float = any(number.kind is float for number in numbers)
    made = torch.get_default_dtype() if is_float else torch.int64
    dtype = options.get("dtype")
    if dtype is None or is_none(dtype):
        dtype = machine.constant(made)
    parts = [record(machine, torch.tensor, [leaf], {"dtype": dtype}) for leaf in leaves]
    stacked = record(machine, torch.stack, [ListValue(parts)])
    sizes = TupleValue([machine.constant(size) for size in shape])
    tensor = record(machine, "reshape", [stacked, sizes]) if len(shape) > 1 else stacked
    device = options.get("device")
    if device is not None and not is_none(device):
        tensor = record(machine, "to", [tensor, device])
    return tensor


def _shape(machine: Machine, value: Value) -> tuple[int, ...] | None:
    """Of nested lists and tuples; None: they are no block of numbers, or a large one."""
    if not isinstance(value, ListValue | TupleValue):
        return ()
    items = [item.realize(machine) for item in value.items]
    first, *others = (_shape(machine, item) for item in items) if items else (None,)
    if first is None or any(other != first for other in others):
        return None
    found = len(items), *first
    return found if math.prod(found) <= _MOST else None


def _leaves(machine: Machine, value: Value) -> Iterator[Value]:
    if not isinstance(value, ListValue | TupleValue):
        yield value
        return
    for item in value.items:
        yield from _leaves(machine, item.realize(machine))
