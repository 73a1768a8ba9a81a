"""Getters of torch's process-wide state: read while tracing, guarded by calling them again.

C functions without arguments that return a switch or a setting give constants of the trace. Python
functions around such getters (torch.backends.cuda.flash_sdp_enabled) are inlined down to them
(trace/builtins/pytorch/torch_rules.py). Most calls that set state break. Handled elsewhere: grad
mode and what else contexts set (trace/values/contexts/torch_contexts.py), autocast (autocast.py),
and anomaly mode, which a compile suspends so that it cannot be read inside one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ....compat.flags import GETTERS, capturing_getter, current_accelerator
from ....compat.modes import (
    DEFAULT_DEVICE,
    dispatch_mode_depth,
    tracing_state,
)
from ....guards.guard import StateRead
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...values.base import Machine, Value
from ...values.contexts.attention_kernels import is_chosen
from ...values.contexts.default_device import default_device, set_default_device
from ...values.contexts.default_dtype import default_dtype, set_default_dtype
from ..registry import calls, handles

__all__ = ["FLAGS_ARE_SET", "read_state"]

FLAGS_ARE_SET = "flags of cudnn"
"""Marks a graph inside a block that sets flags of cuDNN, where a read of the flags breaks."""


def read_state(machine: Machine, getter: Callable[[], object]) -> Value:
    """Return the result of a C function without arguments, guarded by calling it in each call."""
    name = getattr(getter, "__name__", "")
    if "cudnn" in name and FLAGS_ARE_SET in machine.notes.marks:
        raise GraphBreak(RefusedTorchCall.of(name=name, why="a block has set it"))
    state = getter()
    made = machine.constant(state)
    machine.guard(StateRead(getter, state))
    return made


@handles(torch.get_default_device)
def _default_device(machine: Machine) -> torch.device:
    device = default_device(machine)
    if device is not None and (device.index is not None or device.type in ("cpu", "meta")):
        return device
    if device is not None:
        why = "the index of the current device belongs to the thread"
        raise GraphBreak(RefusedTorchCall.of(name="torch.get_default_device", why=why))
    if getattr(DEFAULT_DEVICE, "device_context", None) is not None:
        why = "a default device is set, but its function mode is not active"
        raise GraphBreak(RefusedTorchCall.of(name="torch.get_default_device", why=why))
    return torch.device("cpu")


@handles(torch.set_default_device)
def _set_default_device(machine: Machine, device: Value) -> None:
    if not device.is_constant(machine):
        raise GraphBreak(UnsupportedArguments.of(name="set_default_device", what="not a constant"))
    value = device.as_constant(machine)
    set_default_device(machine, None if value is None else torch.device(value))


@handles(torch.set_default_dtype)
def _set_default_dtype(machine: Machine, dtype: Value) -> None:
    """Set the default dtype of the trace; the thread's is set at the exit."""
    value = dtype.as_constant(machine) if dtype.is_constant(machine) else None
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise GraphBreak(UnsupportedArguments.of(name="set_default_dtype", what="not a constant"))
    set_default_dtype(machine, value)


def _read_settled(device: Any, ask: Callable[[], object], machine: Machine) -> Value:
    """Ask about a device: the result is final once it is initialized, or torch is built without.

    Until then the result is guarded at each call.
    """
    # torch 2.11's optimizers ask torch.cuda.is_available() in each step, so a break here would end
    # the graph of every training step.
    settled = device.is_initialized() or not device._is_compiled()
    return machine.constant(ask()) if settled else read_state(machine, ask)


def _read_capturing(name: str, device: Any, ask: Callable[[], object], machine: Machine) -> Value:
    """Ask whether the device captures a graph, which may change between calls.

    A torch built without the device raises, or returns False.
    """
    # 79 frames of the models of transformers ask this; each was a graph break.
    getter = capturing_getter(name, ask)
    try:
        return read_state(machine, getter) if device._is_compiled() else machine.constant(ask())
    except RuntimeError as error:
        raise machine.error(RuntimeError, *error.args, exact=True) from None


def _state(getter: Callable[[], object], machine: Machine) -> Value:
    if "_sdp_" in getter.__name__ and is_chosen(machine):
        raise GraphBreak(RefusedTorchCall.of(name=getter.__name__, why="a block has set it"))
    return read_state(machine, getter)


_LIVE = [*GETTERS]
_LIVE += [torch.distributed.is_initialized] if torch.distributed.is_available() else []
calls({getter: partial(_state, getter) for getter in _LIVE})
for _name, _device in (("cuda", torch.cuda), ("xpu", torch.xpu)):
    _asked = (_device.is_available, _device.device_count, _device.is_initialized)
    calls({ask: partial(_read_settled, _device, ask) for ask in _asked})
    if (_ask := getattr(_device, "is_current_stream_capturing", None)) is not None:
        calls({_ask: partial(_read_capturing, _name, _device, _ask)})
# These depend only on the machine and the build of torch, or the GlobalState guard covers them.
_FIXED: tuple[Callable[[], object], ...] = (
    torch.backends.mps.is_available,
    torch.distributed.is_available,
    current_accelerator,
    torch.are_deterministic_algorithms_enabled,
)
calls({ask: lambda machine, ask=ask: ask() for ask in _FIXED})
calls(
    {
        torch.get_default_dtype: default_dtype,
        # Nothing is compiled while a mode of the user's is active, or another compiler is at work.
        dispatch_mode_depth: lambda machine: 0,
        tracing_state: lambda machine: None,
    }
)
