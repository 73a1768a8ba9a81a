"""Getters of torch's process-wide state: read while tracing, guarded by calling them again.

C functions without arguments that return a switch or a setting give constants of the trace. Python
functions around such getters (torch.backends.cuda.flash_sdp_enabled) are inlined down to them
(trace/builtins/pytorch/torch_rules.py). Most calls that set state break. Handled elsewhere: grad
mode and what else contexts set (trace/values/contexts/torch_contexts.py), autocast (autocast.py),
and anomaly mode, which a compile suspends so that it cannot be read inside one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....guards.guard import StateRead
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.contexts.default_device import default_device, set_default_device
from ...values.contexts.default_dtype import default_dtype, set_default_dtype
from ..registry import handles

__all__ = ["FLAGS_ARE_SET", "read_state"]

FLAGS_ARE_SET = "flags of cudnn"
"""Marks a graph inside a block that sets flags of cuDNN, where a read of the flags breaks."""

# Names in torch._C; not every version of torch has each of them.
_GETTERS = (
    "get_num_threads get_num_interop_threads _get_warnAlways _get_float32_matmul_precision "
    "_get_deterministic_algorithms _get_deterministic_algorithms_warn_only "
    "_get_deterministic_fill_uninitialized_memory _get_qengine _get_nnpack_enabled "
    "_get_flash_sdp_enabled _get_math_sdp_enabled _get_mem_efficient_sdp_enabled "
    "_get_cudnn_sdp_enabled _get_overrideable_sdp_enabled _get_fa3_sdp_enabled "
    "_get_math_sdp_allow_fp16_bf16_reduction _get_cublas_allow_tf32 "
    "_get_cublas_allow_fp16_reduced_precision_reduction "
    "_get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation "
    "_get_cudnn_enabled _get_cudnn_benchmark _get_cudnn_deterministic _get_cudnn_allow_tf32 "
    "_get_mkldnn_enabled _get_mkldnn_deterministic _get_onednn_allow_tf32 _get_miopen_immediate "
    "_get_cpu_allow_fp16_reduced_precision_reduction _get_cpu_capability"
).split()


def read_state(machine: Machine, getter: Callable[[], object]) -> Value:
    """Return the result of a C function without arguments, guarded by calling it in each call."""
    if "cudnn" in getattr(getter, "__name__", "") and FLAGS_ARE_SET in machine.notes.marks:
        raise GraphBreak(RefusedTorchCall.of(name=getter.__name__, why="a block has set it"))  # type: ignore[attr-defined]
    state = getter()
    made = machine.constant(state)
    machine.guard(StateRead(getter, state))
    return made


def _is_read(getter: Callable[[], object]) -> None:
    @handles(getter)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs:
            raise GraphBreak(UnsupportedArguments.of(name=getter.__name__, what="it takes none"))
        return read_state(machine, getter)


for _name in _GETTERS:
    if hasattr(torch._C, _name):
        _is_read(getattr(torch._C, _name))


def _is_in_global_state(read: Callable[..., object]) -> None:
    """Register a function whose result the GlobalState guard of every entry covers."""

    @handles(read)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        constants = [arg.as_constant(machine) for arg in args]
        return machine.constant(read(*constants))


_is_in_global_state(torch.are_deterministic_algorithms_enabled)


@handles(torch.get_default_device)
def _default_device(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    device = default_device(machine)
    if device is not None and (device.index is not None or device.type in ("cpu", "meta")):
        return machine.constant(device)
    if device is not None:
        why = "the index of the current device belongs to the thread"
        raise GraphBreak(RefusedTorchCall.of(name="torch.get_default_device", why=why))
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None:
        why = "a default device is set, but its function mode is not active"
        raise GraphBreak(RefusedTorchCall.of(name="torch.get_default_device", why=why))
    return machine.constant(torch.device("cpu"))


@handles(torch.set_default_device)
def _set_default_device(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    (device,) = [*args, *kwargs.values()]
    if not device.is_constant(machine):
        raise GraphBreak(UnsupportedArguments.of(name="set_default_device", what="not a constant"))
    value = device.as_constant(machine)
    set_default_device(machine, None if value is None else torch.device(value))
    return machine.constant(None)


@handles(torch.get_default_dtype)
def _get_default_dtype(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(default_dtype(machine))


@handles(torch.set_default_dtype)
def _set_default_dtype(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Set the default dtype of the trace; the thread's is set at the exit."""
    (dtype,) = [*args, *kwargs.values()]
    value = dtype.as_constant(machine) if dtype.is_constant(machine) else None
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise GraphBreak(UnsupportedArguments.of(name="set_default_dtype", what="not a constant"))
    set_default_dtype(machine, value)
    return machine.constant(None)


def _is_settled(device: Any, ask: Callable[[], object]) -> None:
    """Register a query about a device whose result is final once the device is initialized.

    It is final too if torch is built without the device. Until then the result is guarded at each
    call.
    """

    @handles(ask)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        settled = device.is_initialized() or not device._is_compiled()
        return machine.constant(ask()) if settled else read_state(machine, ask)


for _device in (torch.cuda, torch.xpu):
    for _ask in (_device.is_available, _device.device_count, _device.is_initialized):
        _is_settled(_device, _ask)


if torch.distributed.is_available():
    _is_read(torch.distributed.is_initialized)


def _is_capturing(name: str, device: Any) -> None:
    """Register the query whether the device captures a graph, which may change between calls.

    A torch built without the device raises, or returns False.
    """
    ask = getattr(device, "is_current_stream_capturing", None)
    if ask is None:
        return
    getter = getattr(torch._C, f"_{name}_isCurrentStreamCapturing", ask)

    @handles(ask)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        try:
            return read_state(machine, getter) if device._is_compiled() else machine.constant(ask())
        except RuntimeError as error:
            raise machine.error(RuntimeError, *error.args, exact=True) from None


_is_capturing("cuda", torch.cuda)
_is_capturing("xpu", torch.xpu)


def _is_built_in(ask: Callable[[], object]) -> None:
    """Register a query whose result depends only on the machine and the build of torch."""

    @handles(ask)
    def _read(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        return machine.constant(ask())


for _ask in (
    torch.backends.mps.is_available,
    torch.distributed.is_available,
    torch._C._accelerator_getAccelerator,
):
    _is_built_in(_ask)
