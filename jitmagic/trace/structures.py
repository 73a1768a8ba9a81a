"""Converts structures of Values to pytrees of torch and back.

`lower_structure` replaces each tensor in tuples, lists and dictionaries by `leaf(tensor)`, so that
torch.func can flatten the result. A value that is neither a tensor nor a constant becomes a leaf of
class `PassThrough`. `raise_structure` makes new containers, as torch.func does.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from ..compat.pytree import SUPPORTED_NODES
from ..graph.targets.transforms import PassThrough
from .breaks import GraphBreak, UnsupportedArguments
from .values.base import Machine, Value
from .values.containers.mappings import DictValue
from .values.containers.namedtuples import NamedTupleValue
from .values.containers.sequences import ListValue, SequenceValue, StructuredTuple, TupleValue
from .values.tensors.tensor import TensorValue

__all__ = ["lower_structure", "raise_structure"]


def lower_structure(
    machine: Machine, value: Value, name: str, leaf: Callable[[TensorValue], object]
) -> object:
    """Return the pytree of a value, with `leaf(tensor)` for each tensor; `name`: the callee."""
    value = value.realize(machine)
    if isinstance(value, TensorValue):
        return leaf(value)
    if type(value) in (TupleValue, ListValue, NamedTupleValue, StructuredTuple):
        assert isinstance(value, SequenceValue)
        items = [lower_structure(machine, item, name, leaf) for item in value.items]
        if isinstance(value, StructuredTuple):
            return value.python_type(machine)(items)
        if isinstance(value, NamedTupleValue):
            # Not the class's own `__new__`, which may be the user's.
            return tuple.__new__(value.cls.live, items)
        return items if isinstance(value, ListValue) else tuple(items)
    if type(value) is DictValue and value.kind in (dict, collections.OrderedDict):
        return value.kind(
            (
                key.realize(machine).as_constant(machine),
                lower_structure(machine, item, name, leaf),
            )
            for key, item in value.pairs.values()
        )
    if value.is_constant(machine):
        constant = value.as_constant(machine)
        return constant if type(constant) is not torch.Size else tuple(constant)
    # torch.func would flatten such an object into its parts, but as a leaf it stays whole.
    if value.python_type(machine) in SUPPORTED_NODES:
        raise GraphBreak(UnsupportedArguments.of(name=name, what=f"a {value.describe()}"))
    return PassThrough(value)


def raise_structure(
    machine: Machine, structure: Any, leaf: Callable[[object], Value | None]
) -> Value:
    """Return the value of a pytree; `leaf` returns the values of leaves that are not constants."""
    if isinstance(structure, PassThrough):
        held: Value = structure.value
        return held
    if (known := leaf(structure)) is not None:
        return known
    kind = type(structure)
    if kind in (dict, collections.OrderedDict):
        pairs = [
            (machine.constant(key), raise_structure(machine, item, leaf))
            for key, item in structure.items()
        ]
        return DictValue.of(machine, pairs, kind)
    if kind is list or isinstance(structure, tuple):
        items = [raise_structure(machine, item, leaf) for item in structure]
        if kind is list:
            return ListValue(items)
        return TupleValue(items) if kind is tuple else _named(machine, kind, items)
    return machine.constant(structure)


def _named(machine: Machine, kind: type, items: list[Value]) -> Value:
    if hasattr(kind, "n_sequence_fields"):
        return StructuredTuple(kind, items)
    return NamedTupleValue(machine.class_of(kind, None), items)
