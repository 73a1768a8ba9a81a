"""Follows the collectives of torch.distributed that write their results to an argument.

Input: a call of dist.all_reduce and the like without `async_op`. Output: a node that calls the
functional collective and copies its result. The process group is the default one, guarded by a read
at each call, or one that the program passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from ....compat.distributed import in_place_forms, reductions
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.tensors.tensor import record
from ..registry import AS_GIVEN, calls, handles
from .process_state import read_state

__all__: list[str] = []

_NAMES = "all_reduce all_gather all_gather_into_tensor reduce_scatter_tensor all_to_all_single"


def _default_group() -> object:
    return torch.distributed.group.WORLD


def _collective(
    function: Callable[..., Any], machine: Machine, args: Args, kwargs: Kwargs
) -> Value:
    name = function.__name__
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise GraphBreak(UnsupportedArguments.of(name=name, what=str(error))) from None
    given: dict[str, Value] = {
        key: value.realize(machine) for key, value in bound.arguments.items()
    }
    waits = given.pop("async_op", machine.constant(False))
    if waits.as_constant(machine) if waits.is_constant(machine) else True:
        raise GraphBreak(UnsupportedArguments.of(name=name, what="async_op=True"))
    if "op" in bound.signature.parameters:
        op = given.get("op", machine.constant(torch.distributed.ReduceOp.SUM))
        reduction = reductions().get(op.as_constant(machine)) if op.is_constant(machine) else None
        if reduction is None:
            raise GraphBreak(UnsupportedArguments.of(name=name, what="this reduction"))
        given["op"] = machine.constant(reduction)
    group = given.get("group")
    if group is None or (group.is_constant(machine) and group.as_constant(machine) is None):
        given["group"] = read_state(machine, _default_group)
    needed = [p.name for p in bound.signature.parameters.values() if p.default is p.empty]
    first = [given.pop(key) for key in needed]
    record(machine, in_place_forms()[name], first, given)
    return machine.constant(None)


@lru_cache(maxsize=64)
def _reader(function: Callable[..., Any], group: object) -> Callable[[], Any]:
    return partial(function, group)


def _query(function: Callable[..., Any], machine: Machine, group: Value | None = None) -> Value:
    """Return a number of this process in a group, read again at each call."""
    of = None if group is None else group.as_constant(machine)
    return read_state(machine, _reader(function, of))


if torch.distributed.is_available():
    _queries = (torch.distributed.get_rank, torch.distributed.get_world_size)
    calls({ask: partial(_query, ask) for ask in _queries})
    for _name in _NAMES.split():
        _function = getattr(torch.distributed, _name)
        handles(_function, like=AS_GIVEN)(partial(_collective, _function))
