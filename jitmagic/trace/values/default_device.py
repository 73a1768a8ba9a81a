"""The default device: what torch.set_default_device and `with torch.device(...)` around a call give
the factories in it.

Comes in: the device that the entry is guarded with, and the frames of the trace. Goes out: the
arguments that the factory gets. torch keeps the device in a function mode, which is shown every
call of a torch function and makes it again without itself (torch/utils/_device.py): within Python
functions of torch that ask for such modes, factories make tensors of the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import _device_constructors

from .base import Kwargs, Machine

__all__ = ["default_device", "on_default_device"]

_CPU = torch.device("cpu")


def default_device(machine: Machine) -> torch.device | None:
    """That of a factory called now; None where nobody set one."""
    device: Any = machine.entry_state.default_device
    passed = device is None or any(frame.past_default_device for frame in machine.frames)
    return None if passed else device


def on_default_device(machine: Machine, function: Any, kwargs: Kwargs) -> Kwargs:
    """The keyword arguments of a call of a torch function, with the device of a factory."""
    if machine.entry_state.default_device is None or function not in _device_constructors():
        return kwargs
    given = kwargs.get("device")
    if given is not None and given.python_type(machine) is not type(None):
        return kwargs
    # Named in any case: Python that runs the graph is shown to the mode, and nothing is past it.
    return {**kwargs, "device": machine.constant(default_device(machine) or _CPU)}
