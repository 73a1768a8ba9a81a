"""Follows the collectives of torch.distributed that write their results to an argument.

Input: a call of dist.all_reduce and the like. Output: nodes that call a functional collective and
copy its result, and for `async_op` the Work that waits for it. The process group is the default
one, guarded by a read at each call, or one that the program passes. Autograd does not see these
collectives: gradients pass a tensor as if it had not been written to. A call of
DistributedDataParallel is a graph break, behind which the module within is compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ....compat.distributed import broadcast, in_place_forms, is_coalescing, reductions
from ....graph.distributed.objects import PROCESS_GROUP, names_of_class
from ....graph.distributed.rooted import rooted_operator
from ....lazy_dataclass import dataclass
from ...breaks import GraphBreak, UnsupportedArguments, WrappedModule
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import ListValue
from ...values.objects.works import WorkValue
from ...values.tensors.tensor import TensorValue, record
from ..registry import AS_GIVEN, calls, handles
from .coalescing import GATHERED, block_of, default_group
from .process_state import read_state

__all__: list[str] = []


# gloo's copy of its result is recorded by autograd, other backends' is not
_RECORDED = ("reduce_scatter_tensor",)


@dataclass(slots=True, eq=False)
class _Collective:
    """A call: its arguments by name, without `async_op`. `required`: those without a default."""

    machine: Machine
    name: str
    given: dict[str, Value]
    required: tuple[str, ...]

    def refuse(self, what: str) -> GraphBreak:
        return GraphBreak(UnsupportedArguments.of(name=self.name, what=what))

    @property
    def group(self) -> Any:
        """The process group; the trace has guarded which one it is."""
        group = self.constant("group")
        kind: type = type(group)
        if PROCESS_GROUP not in names_of_class(kind):
            raise self.refuse("a group of which this process is no member")
        return group

    @property
    def group_name(self) -> Value:
        return self.machine.constant(self.group.group_name)

    def constant(self, name: str) -> Any:
        """Return an argument that is a constant; None if it is not given."""
        value = self.given.get(name)
        if value is None:
            return None
        if not value.is_constant(self.machine):
            raise self.refuse(f"{name} is not a constant")
        return value.as_constant(self.machine)

    def root(self, end: str, default: int | None = None) -> int:
        """Return the rank in the group that `src` or `dst` names, or `group_src`, `group_dst`."""
        of_all, of_group = self.constant(end), self.constant(f"group_{end}")
        if of_all is None and of_group is None:
            of_all = default
        if (of_all is None) == (of_group is None):
            raise self.refuse(f"{end} and group_{end}")
        if of_group is None:
            return int(torch.distributed.get_group_rank(self.group, of_all))
        return int(of_group)

    def items(self, name: str) -> list[Value]:
        """Return the tensors of an argument that is a list or None."""
        value = self.given.get(name)
        if isinstance(value, ListValue):
            return value.realized(self.machine)
        if value is not None and self.constant(name) is not None:
            raise self.refuse(f"{name} is no list")
        return []

    def run(self, *args: Value) -> Value:
        """Add a call of the operator for a collective with a root."""
        return record(self.machine, rooted_operator(self.name), [*args, self.group_name])

    def in_memory_order(self, name: str) -> TensorValue:
        """Return a contiguous view of a tensor's memory: eager sends it as it is, and a functional
        collective a contiguous copy. A rank that runs as eager must receive the same. Strides that
        kernels choose are taken for contiguous: those of gradients are the parameters'.
        """
        tensor, machine = self.given[name], self.machine
        assert isinstance(tensor, TensorValue)
        strides = tensor.meta.stride()
        if tensor.node in machine.graph.unknown_strides or tensor.meta.is_contiguous():
            return tensor
        order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
        if not tensor.meta.permute(order).is_contiguous():
            raise self.refuse("a tensor that does not fill its memory")
        turned = record(machine, "permute", [tensor, *map(machine.constant, order)])
        view = record(machine, "view", [turned, tensor.get_attr(machine, "shape")])
        assert isinstance(view, TensorValue)
        return view

    def write(self, tensor: Value, made: Value) -> None:
        record(self.machine, "copy_", [tensor, made])


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
    parameters = bound.signature.parameters
    required = tuple(p.name for p in parameters.values() if p.default is p.empty)
    call = _Collective(machine, name, given, required)
    is_async = call.constant("async_op")
    given.pop("async_op", None)
    if "op" in parameters:
        op = given.get("op", machine.constant(torch.distributed.ReduceOp.SUM))
        reduction = reductions().get(op.as_constant(machine)) if op.is_constant(machine) else None
        if reduction is None:
            raise call.refuse("this reduction")
        given["op"] = machine.constant(reduction)
    if call.constant("group") is None:
        given["group"] = read_state(machine, default_group)
    if read_state(machine, is_coalescing).as_constant(machine):
        raise call.refuse("within a block that coalesces collectives, opened before")
    _check_types(call)
    has_gradients = machine.graph.grad_enabled and any(map(_has_history, given.values()))
    if has_gradients and name in _RECORDED:
        raise call.refuse("tensors that require grad")
    given |= {key: _without_history(machine, value) for key, value in given.items()}
    block = block_of(machine, call.group) if name in GATHERED else None
    if block is not None:
        block.add(call, bool(is_async))
        return machine.constant(None)
    _ROWS[name](call)
    return WorkValue(machine, name) if is_async else machine.constant(None)


def _without_history(machine: Machine, value: Value) -> Value:
    """Return a tensor, or the list of tensors, as tensors of the same memory outside of autograd's
    graph.
    """
    if isinstance(value, ListValue):
        return ListValue([_without_history(machine, item) for item in value.realized(machine)])
    return record(machine, "detach", [value]) if _has_history(value) else value


def _has_history(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.meta.requires_grad


def _check_types(call: _Collective) -> None:
    """Refuse tensors of several types, for which eager raises."""
    values = [*call.given.values()]
    values += [item for value in values if isinstance(value, ListValue) for item in value.items]
    if len({value.meta.dtype for value in values if isinstance(value, TensorValue)}) > 1:
        raise call.refuse("tensors of several types")


# -- the collectives ------------------------------------------------------------------------------


def _in_place(call: _Collective) -> None:
    named = dict(call.given)
    first = [named.pop(key) for key in call.required]
    record(call.machine, in_place_forms()[call.name], first, named)


def _all_reduce(call: _Collective) -> None:
    call.given["tensor"] = call.in_memory_order("tensor")
    _in_place(call)


def _all_gather(call: _Collective) -> None:
    if len(call.items("tensor_list")) != call.group.size():
        raise call.refuse("a list that has not one tensor for each rank")
    _in_place(call)


def _broadcast(call: _Collective) -> None:
    tensor, root = call.in_memory_order("tensor"), call.machine.constant(call.root("src"))
    made = record(call.machine, broadcast(), [tensor, root], {"group": call.given["group"]})
    call.write(tensor, made)


def _reduce(call: _Collective) -> None:
    tensor, root = call.in_memory_order("tensor"), call.machine.constant(call.root("dst"))
    call.write(tensor, call.run(tensor, root, call.given["op"]))


def _gather(call: _Collective) -> None:
    machine, root = call.machine, call.root("dst", default=0)
    parts = call.items("gather_list")
    _check_list_of_root(call, root, parts)
    count = machine.constant(len(parts))
    made = call.run(call.given["tensor"], count, machine.constant(root))
    for number, part in enumerate(parts):
        call.write(part, made.get_item(machine, machine.constant(number)))


def _scatter(call: _Collective) -> None:
    tensor, root = call.given["tensor"], call.root("src", default=0)
    parts = call.items("scatter_list")
    _check_list_of_root(call, root, parts)
    call.write(tensor, call.run(tensor, ListValue(parts), call.machine.constant(root)))


def _check_list_of_root(call: _Collective, root: int, parts: list[Value]) -> None:
    """Refuse lists for which eager raises: the root has a tensor of one size for each rank."""
    expected = call.group.size() if call.group.rank() == root else 0
    values = [call.given["tensor"], *parts]
    first, *others = [value.meta.shape for value in values if isinstance(value, TensorValue)]
    # Compared one by one: the hash of a shape would make its sizes constants.
    if len(parts) != expected or any(other != first for other in others):
        raise call.refuse("a list that does not fit the rank")


def _barrier(call: _Collective) -> None:
    if call.constant("device_ids") is not None or call.constant("timeout") is not None:
        raise call.refuse("device_ids or timeout")
    constant = call.machine.constant
    cpu = {"device": constant(torch.device("cpu"))}
    call.run(record(call.machine, torch.zeros, [constant(1)], cpu))


_ROWS: dict[str, Callable[[_Collective], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _in_place,
    "reduce_scatter_tensor": _in_place,
    "all_to_all_single": _in_place,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
}


@lru_cache(maxsize=64)
def _reader(function: Callable[..., Any], group: object) -> Callable[[], Any]:
    return partial(function, group)


def _query(function: Callable[..., Any], machine: Machine, group: Value | None = None) -> Value:
    """Return a fact about a group, or about this process in it, read again at each call."""
    of = None if group is None else group.as_constant(machine)
    return read_state(machine, _reader(function, of))


if torch.distributed.is_available():
    _names = "get_rank get_world_size get_backend".split()
    _queries = [getattr(torch.distributed, name) for name in _names]
    calls({ask: partial(_query, ask) for ask in _queries})
    for _name in _ROWS:
        _function = getattr(torch.distributed, _name)
        handles(_function, like=AS_GIVEN)(partial(_collective, _function))

    @handles(DistributedDataParallel.forward)
    def _parallel_forward(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise GraphBreak(WrappedModule.of(name=DistributedDataParallel.__name__))
