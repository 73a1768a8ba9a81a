"""Follows the functions of torch.distributed.tensor that make a DTensor.

Input: a call of distribute_tensor, or of a factory such as torch.distributed.tensor.zeros. Output:
one node, which runs the function when the graph is traced: what it sends or receives becomes a node
of the ATen graph (graph/distributed/sharding.py). A mesh that is not given is that of the enclosing
`with mesh:`, read again at each call. A leaf that requires grad is made without history, and gets
the flag after.
"""

from __future__ import annotations

import sys
from functools import partial

from ....compat.distributed import current_mesh
from ....graph.wrappers.wrapping import is_wrapper
from ....torch_types import AnyFunction
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.operators import is_none
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles_named
from .process_state import read_state
from .torch_rules import PLACED_FACTORIES

__all__: list[str] = []

_MODULE = "torch.distributed.tensor"


def _distribute(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    tensor, given, placements, *_ = [*args, machine.constant(None), machine.constant(None)]
    mesh, name = _mesh(machine, "distribute_tensor", given), "distribute_tensor"
    if not isinstance(tensor, TensorValue) or is_wrapper(tensor.meta) or not tensor.meta.is_leaf:
        return record(machine, _function(name), [tensor, mesh, placements], kwargs)
    detached = record(machine, "detach", [tensor]) if tensor.meta.requires_grad else tensor
    moved = record(machine, "to", [detached, mesh.get_attr(machine, "device_type")])
    made = record(machine, _function(name), [moved, mesh, placements], kwargs)
    if detached is tensor:
        return made
    assert isinstance(made, TensorValue)
    return made.require_grad(machine, machine.constant(True))


def _make(name: str, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    mesh = _mesh(machine, name, kwargs.get("device_mesh", machine.constant(None)))
    return record(machine, _function(name), args, {**kwargs, "device_mesh": mesh})


def _function(name: str) -> AnyFunction:
    function: AnyFunction = getattr(sys.modules[_MODULE], name)
    return function


def _mesh(machine: Machine, name: str, given: Value) -> Value:
    if not is_none(given):
        return given
    mesh = read_state(machine, current_mesh)
    if is_none(mesh):
        raise GraphBreak(UnsupportedArguments.of(name=name, what="no mesh"))
    return mesh


handles_named(_MODULE, PLACED_FACTORIES[0])(_distribute)
for _name in PLACED_FACTORIES[1:]:
    handles_named(_MODULE, _name)(partial(_make, _name))
