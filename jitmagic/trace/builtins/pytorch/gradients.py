"""Clearing gradients: `zero_grad` of optimizers and modules.

Each parameter's gradient becomes None, whatever it was, or zeros are written to it. If the
parameters cannot be traced, the same call happens at the exit; no gradient may be read in this
graph after it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _foreach_utils

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.autograd.gradients import GRADIENTS_GONE, read_gradient, store_gradient
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.callables import BuiltinValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import is_none, unpack
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []


def _register(function: Any) -> None:
    @handles(function)
    def _clear(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner, *given = args
        to_none = dict(zip(("set_to_none",), given, strict=False)) | dict(kwargs)
        known = isinstance(owner, InstanceValue) and len(given) < 2
        if not known or set(to_none) - {"set_to_none"}:
            owner.refuse(machine, "zero_grad()")
        if to_none and not to_none["set_to_none"].truth(machine):
            _write_zeros(machine, _parameters(machine, owner))
            return machine.constant(None)
        try:
            parameters = _parameters(machine, owner)
        except GraphBreak:
            if owner.source is None:
                raise
            machine.effects.perform(BuiltinValue(function), args, kwargs)
            # The call happens after the graph: gradients read from here on would be the old ones.
            machine.notes.marks.add(GRADIENTS_GONE)
            return machine.constant(None)
        for parameter in parameters:
            store_gradient(machine, parameter, machine.constant(None))
        return machine.constant(None)


_register(torch.optim.Optimizer.zero_grad)
_register(torch.nn.Module.zero_grad)


def _parameters(machine: Machine, owner: Value) -> list[TensorValue]:
    if issubclass(owner.python_type(machine), torch.nn.Module):
        found = unpack(machine, owner.call_method(machine, "parameters", [], {}))
    else:
        groups = unpack(machine, owner.get_attr(machine, "param_groups"))
        key = machine.constant("params")
        lists = [group.realize(machine).get_item(machine, key) for group in groups]
        found = [parameter for one in lists for parameter in unpack(machine, one)]
    parameters = [parameter.realize(machine) for parameter in found]
    if not all(isinstance(parameter, TensorValue) for parameter in parameters):
        owner.refuse(machine, "zero_grad()")
    return parameters  # type: ignore[return-value]


def _write_zeros(machine: Machine, parameters: list[TensorValue]) -> None:
    """Write zeros one by one, where eager uses lists; the order does not matter."""
    for parameter in parameters:
        gradient = read_gradient(machine, parameter)
        if is_none(gradient):
            continue
        if not isinstance(gradient, TensorValue) or gradient.meta.requires_grad:
            raise GraphBreak(UnsupportedArguments.of(name="zero_grad", what="such gradients"))
        record(machine, "zero_", [gradient])


@handles(_foreach_utils._has_foreach_support)
def _supports_lists(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Return whether all are plain tensors on a device that has the list operations."""
    given = dict(zip(("tensors", "device"), args, strict=False)) | dict(kwargs)
    tensors = unpack(machine, given["tensors"])
    kinds = {one.realize(machine).python_type(machine) for one in tensors}
    device = given["device"].as_constant(machine)
    here = _foreach_utils._device_has_foreach_support(device)
    return machine.constant(here and kinds <= {torch.Tensor, type(None)})


@handles(_foreach_utils._device_has_foreach_support)
def _has_lists(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    device = (args[0] if args else kwargs["device"]).as_constant(machine)
    return machine.constant(_foreach_utils._device_has_foreach_support(device))
