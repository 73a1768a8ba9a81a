"""torch._foreach_*, the list operations of optimizers, and their grouping of tensors.

Takes lists of tensors, numbers and lists of numbers. Records one node for the call. If a number is
symbolic, it records the plain tensor operation for each element instead, in the order of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils import _foreach_utils

from ....graph.memory import storage_under
from ....graph.node_meta import device_of
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, SequenceValue, TupleValue
from ...values.numbers.number import node_scalar
from ...values.objects.constants import ConstantValue
from ...values.tensors.tensor import TensorValue, record
from ..registry import Handler, handles

__all__: list[str] = []

_ELEMENTWISE = ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv")
_VALUE_LAST = ("addcmul", "addcdiv")  # the number is a keyword of the tensor operation


def _follow(bare: str, in_place: bool, function: Callable[..., Any]) -> Handler:
    method = f"{bare}_" if in_place else bare

    def handler(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        arguments = (*args, *kwargs.values())
        if not args or not any(_holds_number(machine, value) for value in arguments):
            return record(machine, function, args, kwargs)
        columns = _columns(machine, f"torch._foreach_{method}", args)
        if bare in _VALUE_LAST and len(columns) == 4:
            rows = [(row[:3], {"value": row[3]}) for row in zip(*columns, strict=True)]
        else:
            rows = [(row, dict(kwargs)) for row in zip(*columns, strict=True)]
        results = [record(machine, method, list(row), named) for row, named in rows]
        if not in_place:
            return TupleValue(results)
        return ListValue(results) if _gives_what_it_wrote() else machine.constant(None)

    return handler


def _holds_number(machine: Machine, value: Value) -> bool:
    if isinstance(value, SequenceValue):
        return any(_holds_number(machine, item.realize(machine)) for item in value.items)
    return node_scalar(value) is not None


def _columns(machine: Machine, name: str, args: Args) -> list[list[Value]]:
    """Return the arguments for each tensor of the first list.

    No entry shares memory with another, so their order does not matter.
    """
    first = _entries(machine, name, args[0])
    columns = [
        _entries(machine, name, arg) if isinstance(arg, SequenceValue) else [arg] * len(first)
        for arg in args
    ]
    if not first or any(len(column) != len(first) for column in columns):
        raise _refusal(name, "lists of several lengths")
    positions: dict[int, int] = {}
    for column in columns:
        for position, entry in enumerate(column):
            if not isinstance(entry, TensorValue):
                continue
            memory = storage_under(entry.meta)
            if column is columns[0] and memory in positions:
                raise _refusal(name, "tensors that share memory")
            if column is columns[0]:
                positions[memory] = position
            elif positions.get(memory, position) != position:
                raise _refusal(name, "tensors that share memory")
    return columns


def _entries(machine: Machine, name: str, column: Value) -> list[Value]:
    if not isinstance(column, SequenceValue):
        raise _refusal(name, "something else than lists")
    return [item.realize(machine) for item in column.items]


def _refusal(name: str, what: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=name, what=what))


@lru_cache(maxsize=1)
def _gives_what_it_wrote() -> bool:
    """Return whether in-place list operations return the list (newer versions of torch) or None."""
    function: Any = torch._foreach_neg_
    return function([torch.zeros(())]) is not None


def _register() -> None:
    for bare in _ELEMENTWISE:
        for in_place in (False, True):
            function = getattr(torch, f"_foreach_{bare}{'_' if in_place else ''}")
            handles(function)(_follow(bare, in_place, function))


_register()


# -- sorting ---------------------------------------------------------------------------------------


_GROUPING = "tensors by device and dtype"


@handles(
    Optimizer._group_tensors_by_device_and_dtype,
    _foreach_utils._group_tensors_by_device_and_dtype,
)
def _grouped(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Group the lists by the first one's tensors: {(device, dtype): (lists, indices if
    requested)}.
    """
    if len(args) != 1 or set(kwargs) - {"with_indices"}:
        raise _refusal(_GROUPING, "other arguments")
    indexed = "with_indices" in kwargs and kwargs["with_indices"].truth(machine)
    lists_given = _entries(machine, _GROUPING, args[0])
    columns = [_entries(machine, _GROUPING, tensors) for tensors in lists_given]
    if not columns or any(len(column) not in (0, len(columns[0])) for column in columns):
        raise _refusal(_GROUPING, "lists of several lengths")
    groups: dict[tuple[Any, Any], list[int]] = {}
    for position, tensor in enumerate(columns[0]):
        groups.setdefault(_kind(tensor), []).append(position)
    for column in columns[1:]:
        _check_alike(columns[0], column)
    pairs: list[tuple[Value, Value]] = []
    for kind, positions in groups.items():
        lists = [ListValue([column[n] for n in positions] if column else []) for column in columns]
        listed: list[Value] = [machine.constant(n) for n in positions if indexed]
        key = TupleValue([machine.constant(part) for part in kind])
        pairs.append((key, TupleValue([ListValue([*lists]), ListValue(listed)])))
    return DictValue.of(machine, pairs)


def _kind(value: Value) -> tuple[torch.device, torch.dtype]:
    if not isinstance(value, TensorValue):
        raise _refusal(_GROUPING, "something else than tensors")
    return device_of(value.node), value.node.meta["val"].dtype


def _check_alike(first: Sequence[Value], column: Sequence[Value]) -> None:
    """Break for lists whose tensors differ, as eager does; step counters may be on the CPU."""
    for left, right in zip(first, column, strict=False):
        if isinstance(right, ConstantValue) and right.value is None:
            continue
        device, dtype = _kind(right)
        counts = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        if (device, dtype) != _kind(left) and not counts:
            raise _refusal(_GROUPING, "tensors that differ at one place of the lists")
