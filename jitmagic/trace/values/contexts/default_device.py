"""Models the default device of tensor factories: set_default_device and `with torch.device(...)`.

Input: the device in the entry guard, the devices that the program sets, and the traced frames.
Output: the `device` argument of a factory. An exit sets the last device of set_default_device; at a
graph break inside a block, a context that is already entered is built on the stack.

torch implements the default device as a TorchFunctionMode (torch/utils/_device.py), which
intercepts a torch function and calls it again with the mode disabled. So factories inside Python
functions of torch that dispatch on modes create CPU tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from ....compat.modes import DeviceContext, device_constructors
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Kwargs, Machine, Value
from ..objects.constants import CONTEXT_CONSTANTS
from .contexts import ContextValue, Row, set_at_exit

__all__ = ["default_device", "on_default_device", "set_default_device"]

_CPU = torch.device("cpu")


class _TracedDevices:
    """The default devices that the traced program has set."""

    def __init__(self) -> None:
        self.is_set = False  # by set_default_device
        self.device: torch.device | None = None  # its argument
        self.blocks: list[tuple[torch.device, int]] = []  # active blocks, with their frame depths


def default_device(machine: Machine) -> torch.device | None:
    """Return the default device for a factory called now, or None."""
    traced = machine.notes.root.of(_TracedDevices)
    device: Any = traced.device if traced.is_set else machine.entry_state.default_device
    depth = 0
    if traced.blocks:
        device, depth = traced.blocks[-1]
    # The mode is off in the frame of a torch function that it has intercepted.
    disabled = device is None or any(f.past_default_device for f in machine.frames[depth:])
    return None if disabled else device


def _is_any_set(machine: Machine) -> bool:
    traced = machine.notes.root.of(_TracedDevices)
    entry = machine.entry_state.default_device
    return entry is not None or traced.device is not None or bool(traced.blocks)


def set_default_device(machine: Machine, device: torch.device | None) -> None:
    """Trace torch.set_default_device; break if another default device is active."""
    traced = machine.notes.root.of(_TracedDevices)
    if machine.entry_state.default_device is not None or traced.blocks:
        why = "another default device is in force around it"
        raise GraphBreak(RefusedTorchCall.of(name="torch.set_default_device", why=why))
    set_at_exit(machine, torch.set_default_device, lambda: (traced.device,))
    traced.is_set, traced.device = True, device


class _DeviceRow(Row):
    """`with torch.device(...)`; a torch.device itself is a constant."""

    decorates = False

    def enter(self, machine: Machine, context: ContextValue) -> None:
        device = context.arguments["device"]
        assert isinstance(device, torch.device | str | int)
        block = torch.device(device), len(machine.frames)
        machine.notes.root.of(_TracedDevices).blocks.append(block)

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        machine.notes.root.of(_TracedDevices).blocks.pop()


_DEVICE = _DeviceRow(DeviceContext, "device")


def _enter(machine: Machine, device: torch.device) -> Value:
    return ContextValue(_DEVICE, {"device": device}).enter(machine)[0]


CONTEXT_CONSTANTS[torch.device] = _enter


def on_default_device(machine: Machine, function: Any, kwargs: Kwargs) -> Kwargs:
    """Return the keyword arguments of a torch function, with the default `device` of a factory."""
    if not _is_any_set(machine) or function not in device_constructors():
        return kwargs
    explicit = kwargs.get("device")
    if explicit is not None and explicit.python_type(machine) is not type(None):
        return kwargs
    # Explicit even for the CPU: an active mode also intercepts the graph's calls when it runs.
    return {**kwargs, "device": machine.constant(default_device(machine) or _CPU)}
