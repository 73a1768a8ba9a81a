"""Records `torch.tensor([lr, 1.0])` of varying numbers or 0-dim tensors as a `torch.stack`.

Input: the arguments of torch.tensor. Output: the tensor, or None if no item is such a number or an
item is not a number. A list of sizes only is an ordinary argument and is not handled here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import reduce

import torch

from ....graph.node_meta import device_of
from ..base import Machine, Value
from ..containers.sequences import ListValue, TupleValue
from ..contexts.default_dtype import default_dtype
from ..objects.operators import is_none
from ..tensors.tensor import TensorValue, record
from .scalars import ScalarValue, scalar_of

__all__ = ["stacked_numbers"]

_OPTIONS = {"dtype", "device"}
_MOST = 64  # each is a node of the graph


def stacked_numbers(machine: Machine, value: Value, options: Mapping[str, Value]) -> Value | None:
    """Return `torch.tensor(value, **options)`, or None if it is not a stack of numbers."""
    real = value.realize(machine)
    shape = _shape(machine, real)
    if not shape or not options.keys() <= _OPTIONS:
        return None
    leaves = list(_leaves(machine, real))
    if not any(isinstance(leaf, ScalarValue | TensorValue) for leaf in leaves):
        return None
    dtypes = [made for leaf in leaves if (made := _dtype_of(machine, leaf)) is not None]
    if len(dtypes) < len(leaves):
        return None
    dtype = options.get("dtype")
    if dtype is None or is_none(dtype):
        dtype = machine.constant(reduce(torch.promote_types, dtypes))
    parts = [_part(machine, leaf, dtype) for leaf in leaves]
    if len(items := [part for part in parts if part is not None]) < len(leaves):
        return None
    stacked = record(machine, torch.stack, [ListValue(items)])
    sizes = TupleValue([machine.constant(size) for size in shape])
    tensor = record(machine, "reshape", [stacked, sizes]) if len(shape) > 1 else stacked
    device = options.get("device")
    if device is not None and not is_none(device):
        tensor = record(machine, "to", [tensor, device])
    return tensor


def _dtype_of(machine: Machine, leaf: Value) -> torch.dtype | None:
    """Return the dtype that torch.tensor infers for an item; None if it is not a number."""
    if isinstance(leaf, TensorValue):
        meta = leaf.meta
        usual = not meta.dim() and device_of(leaf.node).type == "cpu" and not meta.is_complex()
        return meta.dtype if usual and not meta.requires_grad else None
    number = scalar_of(machine, leaf)
    if number is None or leaf.python_type(machine) is bool:
        return None if number is None else torch.bool
    return default_dtype(machine) if number.kind is float else torch.int64


def _part(machine: Machine, leaf: Value, dtype: Value) -> Value | None:
    """Return an item as a tensor, or None if the dtype cannot hold it and eager may raise."""
    if not isinstance(leaf, TensorValue):
        return record(machine, torch.tensor, [leaf], {"dtype": dtype})
    wanted = dtype.as_constant(machine)
    if torch.promote_types(wanted, leaf.meta.dtype) is not wanted:
        return None
    return record(machine, "to", [leaf, dtype])


def _shape(machine: Machine, value: Value) -> tuple[int, ...] | None:
    """Return the shape of nested lists and tuples; None if they are ragged, empty or large."""
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
