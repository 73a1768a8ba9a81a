"""The default device: what torch.set_default_device and `with torch.device(...)` around a call give
the factories in it.

Comes in: the device that the entry is guarded with, what the program sets on its way, and the
frames of the trace. Goes out: the arguments that the factory gets; at the end of the trace, an
effect that sets what set_default_device left, and at a graph break inside a block, a real context
that has been entered. torch keeps the device in a function mode, which is shown every
call of a torch function and makes it again without itself (torch/utils/_device.py): within Python
functions of torch that ask for such modes, factories make tensors of the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from ...breaks import GraphBreak, RefusedTorchCall
from ...result import Perform, Recipe
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.constants import BLOCKS

__all__ = ["default_device", "on_default_device", "set_default_device"]

_CPU = torch.device("cpu")


class _Traced:
    """Default devices that the program itself has set."""

    def __init__(self) -> None:
        self.is_set = False  # by set_default_device
        self.given: torch.device | None = None
        self.blocks: list[tuple[torch.device, int]] = []  # with the frames around the `with`


def default_device(machine: Machine) -> torch.device | None:
    """The device of a factory called now; None where no default was set."""
    traced = machine.notes.root.of(_Traced)
    device: Any = traced.given if traced.is_set else machine.entry_state.default_device
    depth = 0
    if traced.blocks:
        device, depth = traced.blocks[-1]
    passed = device is None or any(f.past_default_device for f in machine.frames[depth:])
    return None if passed else device


def _is_any_set(machine: Machine) -> bool:
    traced = machine.notes.root.of(_Traced)
    entry = machine.entry_state.default_device
    return entry is not None or traced.given is not None or bool(traced.blocks)


def set_default_device(machine: Machine, device: torch.device | None) -> None:
    """torch.set_default_device, where no default device was set before the trace."""
    traced = machine.notes.root.of(_Traced)
    if machine.entry_state.default_device is not None or traced.blocks:
        why = "another default device is in force around it"
        raise GraphBreak(RefusedTorchCall.of(name="torch.set_default_device", why=why))
    if not traced.is_set:
        machine.at_exit(lambda builder: _tell(traced, builder))
    traced.is_set, traced.given = True, device


def _tell(traced: _Traced, builder: Builder) -> None:
    setter = builder.constant(torch.set_default_device)
    builder.effect(Perform(setter, (builder.constant(traced.given),)))


class DeviceBlock(Value):
    """The bound `__exit__` of a `with torch.device(...)` that has been entered."""

    __slots__ = ("device",)

    def __init__(self, machine: Machine, device: torch.device) -> None:
        super().__init__()
        self.device = device
        machine.notes.root.of(_Traced).blocks.append((device, len(machine.frames)))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        machine.notes.root.of(_Traced).blocks.pop()
        return machine.constant(None)

    def truth(self, machine: Machine) -> bool:
        return True

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(_entered, (builder.constant(self.device),))


BLOCKS[torch.device] = DeviceBlock


def _entered(device: torch.device) -> Any:
    """The `__exit__` of a real block of that device."""
    context = DeviceContext(device)
    context.__enter__()
    return context.__exit__


def on_default_device(machine: Machine, function: Any, kwargs: Kwargs) -> Kwargs:
    """The keyword arguments of a call of a torch function, with the device of a factory."""
    if not _is_any_set(machine) or function not in _device_constructors():
        return kwargs
    given = kwargs.get("device")
    if given is not None and given.python_type(machine) is not type(None):
        return kwargs
    # Named in any case: Python that runs the graph is shown to the mode, and nothing is past it.
    return {**kwargs, "device": machine.constant(default_device(machine) or _CPU)}
