"""The C functions that read and set a thread's autocast state, which torch.autocast calls.

torch's own Python code, which is inlined, or the user's calls them. They read and set the state of
the traced program: the graph under construction has the mode, `machine.autocast` the rest. If the
trace ends in another state than it began in (a graph break inside a block), an effect sets the
thread's state. One guard checks the whole state as soon as any part is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ....compat.flags import is_autocast_available, privateuse1_name
from ....graph.autocast_mode import DEVICES
from ....guards.guard import AutocastDetails
from ...breaks import GraphBreak, RefusedTorchCall
from ...residual_torch_calls import bring_thread_to
from ...values.base import Machine, Value
from ...values.contexts.contexts import set_at_exit
from ..registry import calls, handles

__all__: list[str] = []


def _rest(machine: Machine) -> AutocastDetails:
    if machine.autocast is not None:
        return machine.autocast
    mode, entry = machine.graph.autocast, machine.rely_on_autocast()
    machine.autocast = entry
    # Compared at the exit only: a block that is entered and left within the trace emits nothing.
    now = lambda: (machine.graph.autocast, machine.autocast)  # noqa: E731
    set_at_exit(machine, bring_thread_to, lambda: None if now() == (mode, entry) else now())
    return entry


def _device(machine: Machine, name: str, value: Value | None) -> str:
    # The forms without a device are older than autocast on a CPU, and mean CUDA.
    device = "cuda" if value is None else value.as_constant(machine)
    if device not in DEVICES:
        why = f"it is about {device!r}, a device that is not supported"
        raise GraphBreak(RefusedTorchCall.of(name=f"torch.{name}", why=why))
    return str(device)


@handles(torch.is_autocast_enabled)
def _is_enabled(machine: Machine, device_type: Value | None = None) -> bool:
    device = _device(machine, "is_autocast_enabled", device_type)
    return machine.graph.autocast.dtype_on(device) is not None


@handles(torch.get_autocast_dtype, like=lambda device_type: None)
def _get_dtype(machine: Machine, device_type: Value) -> torch.dtype:
    dtype: torch.dtype = getattr(
        _rest(machine), _device(machine, "get_autocast_dtype", device_type)
    )
    return dtype


@handles(torch.is_autocast_cache_enabled)
def _is_cache_enabled(machine: Machine) -> bool:
    return _rest(machine).cache


@handles(torch.set_autocast_enabled)
def _set_enabled(machine: Machine, *args: Value) -> None:
    *named, enabled = args
    device = _device(machine, "set_autocast_enabled", named[0] if named else None)
    dtype = getattr(_rest(machine), device) if enabled.as_constant(machine) else None
    machine.graph.set_autocast(replace(machine.graph.autocast, **{device: dtype}))


@handles(torch.set_autocast_dtype)
def _set_dtype(machine: Machine, device_type: Value, value: Value) -> None:
    device, dtype = _device(machine, "set_autocast_dtype", device_type), value.as_constant(machine)
    machine.autocast = _rest(machine)._replace(**{device: dtype})
    # The graph knows a mode by its dtype, None where autocast is off.
    if machine.graph.autocast.dtype_on(device) is not None:
        machine.graph.set_autocast(replace(machine.graph.autocast, **{device: dtype}))


@handles(torch.set_autocast_cache_enabled)
def _set_cache_enabled(machine: Machine, value: Value) -> None:
    enabled = value.as_constant(machine)
    machine.autocast = _rest(machine)._replace(cache=enabled)
    machine.graph.cast_cache.enabled = enabled


def _nest(change: int, machine: Machine) -> int:
    nesting = _rest(machine).nesting + change
    # Eager's cache is cleared with the outermost block. The graph follows what eager has cached,
    # because a cast of a leaf that was written to since gives the old value.
    if nesting == 0:
        machine.graph.cast_cache.clear()
    machine.autocast = _rest(machine)._replace(nesting=nesting)
    return nesting


@handles(torch.clear_autocast_cache)
def _clear_cache(machine: Machine) -> None:
    """Do nothing: graphs cache no casts, and the thread's own go when it leaves its last block."""
    if _rest(machine).nesting:
        why = "an open block has cached casts for it"
        raise GraphBreak(RefusedTorchCall.of(name="torch.clear_autocast_cache", why=why))


def _fact(read: Callable[..., object], machine: Machine, *args: Value) -> object:
    """Call a function whose result does not change, or is guarded with the state."""
    return read(*(arg.as_constant(machine) for arg in args))


_FACTS: tuple[Callable[..., object], ...] = (
    is_autocast_available,
    privateuse1_name,
    torch.cuda.amp.common.amp_definitely_not_available,
    torch.cuda.is_bf16_supported,
)
calls({
    torch.autocast_increment_nesting: partial(_nest, 1),
    torch.autocast_decrement_nesting: partial(_nest, -1),
    **{read: partial(_fact, read) for read in _FACTS},
})  # fmt: skip
