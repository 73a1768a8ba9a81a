"""`torch.nn.Parameter(data)` in traced code: a leaf of the autograd graph, of that class.

The result shares the memory of `data`, without its history. An exit that returns it sets the class
of the tensor that the graph made, because to autograd a copy would be another leaf.
"""

from __future__ import annotations

import torch

from ...breaks import Construction, GraphBreak
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.classes import ClassValue, constructs
from ...values.objects.operators import is_none
from ...values.tensors.tensor import TensorValue, record

__all__: list[str] = []

_PARAMETER = torch.nn.Parameter


@constructs(lambda kind: kind is _PARAMETER, before_others=True)
def _make(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | dict(kwargs)
    flag = given.pop("requires_grad", machine.constant(True)).realize(machine)
    data = given.pop("data", machine.constant(None)).realize(machine)
    if is_none(data):
        data = record(machine, torch.empty, [machine.constant(0)])
    is_plain = isinstance(data, TensorValue) and data.kind in (torch.Tensor, _PARAMETER)
    if given or len(args) > 2 or not is_plain:
        raise GraphBreak(Construction.of(what="torch.nn.Parameter() of such a value"))
    made = record(machine, "detach", [data])
    assert isinstance(made, TensorValue)
    made.kind = _PARAMETER
    return made.require_grad(machine, flag)
