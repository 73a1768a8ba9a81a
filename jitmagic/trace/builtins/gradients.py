"""Gradients that are taken away: `zero_grad` of optimizers and modules.

Comes in: such a call that sets gradients to None. Goes out: the same call at the exit. Whose
gradients they are is not looked at, so that a model of any size needs no guard for it; from there
on no gradient is read in this graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _foreach_utils

from ..breaks import GraphBreak, UnsupportedArguments
from ..values.base import Args, Kwargs, Machine, Value
from ..values.callables import BuiltinValue
from ..values.instances import InstanceValue
from ..values.operators import unpack
from ..values.tensor import GRADIENTS_GONE
from .registry import handles

__all__: list[str] = []


def _register(function: Any) -> None:
    @handles(function)
    def _clear(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner, *given = args
        to_none = dict(zip(("set_to_none",), given, strict=False)) | dict(kwargs)
        known = isinstance(owner, InstanceValue) and owner.source is not None and len(given) < 2
        if not known or set(to_none) - {"set_to_none"}:
            owner.refuse(machine, "zero_grad()")
        if to_none and not to_none["set_to_none"].truth(machine):
            raise GraphBreak(UnsupportedArguments.of(name="zero_grad", what="writes of zeros"))
        machine.effects.perform(BuiltinValue(function), args, kwargs)
        machine.graph.noted.add(GRADIENTS_GONE)
        return machine.constant(None)


_register(torch.optim.Optimizer.zero_grad)
_register(torch.nn.Module.zero_grad)


@handles(_foreach_utils._has_foreach_support)
def _supports_lists(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Whether all are plain tensors, on a device that has the list operations."""
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
