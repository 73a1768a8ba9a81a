"""Binds the switches of the thread: dispatch modes, function modes, gradients, autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .operators import DispatchKey
from .table import private

if TYPE_CHECKING:
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    DeviceContext = private("torch.utils._device.DeviceContext")
    TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode")

__all__ = [
    "DEFAULT_DEVICE",
    "AutocastOff",
    "BelowAutograd",
    "BelowViewTracking",
    "DeviceContext",
    "DispatchModesOff",
    "InferenceMode",
    "PythonDispatcher",
    "TorchDispatchMode",
    "TorchFunctionOfSubclassesOff",
    "TorchFunctionOn",
    "above_autograd",
    "device_constructors",
    "dispatch_mode_at",
    "dispatch_mode_depth",
    "function_mode_at",
    "function_mode_depth",
    "ignore_torch_function",
    "is_function_mode_active",
    "is_multithreading_enabled",
    "is_torch_function_enabled",
    "pop_dispatch_mode",
    "pop_function_mode",
    "push_dispatch_mode",
    "push_function_mode",
    "recording_off",
    "records_operations",
    "switch_grad_mode",
    "switch_multithreading",
    "tracing_state",
    "uninitialised_cuda",
    "without_dispatch_modes",
    "without_innermost_mode",
]

Mode = AbstractContextManager[Any]

# Stacks of modes.
function_mode_depth: Callable[[], int] = private("torch._C._len_torch_function_stack")
function_mode_at: Callable[[int], Any] = private("torch._C._get_function_stack_at")
push_function_mode: Callable[[Any], None] = private("torch._C._push_on_torch_function_stack")
pop_function_mode: Callable[[], Any] = private("torch._C._pop_torch_function_stack")
is_torch_function_enabled: Callable[[], bool] = private("torch._C._is_torch_function_enabled")
is_function_mode_active: Callable[[], bool] = private("torch._C._is_torch_function_mode_enabled")
ignore_torch_function: Any = private("torch._C._disabled_torch_function_impl")
dispatch_mode_depth: Callable[[], int] = private("torch._C._len_torch_dispatch_stack")
dispatch_mode_at: Callable[[int], Any] = private("torch._C._get_dispatch_stack_at")
push_dispatch_mode: Callable[[Any], None] = private("torch._C._push_on_torch_dispatch_stack")
pop_dispatch_mode: Callable[[Any], Any] = private("torch._C._pop_torch_dispatch_stack")
without_dispatch_modes: Callable[[], Mode] = private(
    "torch.utils._python_dispatch._disable_current_modes"
)
without_innermost_mode: Callable[[], Mode] = private(
    "torch.utils._python_dispatch._pop_mode_temporarily"
)
tracing_state: Callable[[], Any] = private("torch._C._get_tracing_state")

# Blocks in which dispatch keys are excluded or included.
AutocastOff: Callable[[], Mode] = private("torch._C._DisableAutocast")
BelowAutograd: Callable[[], Mode] = private("torch._C._AutoDispatchBelowAutograd")
_initialise_cuda: Callable[[], None] = private("torch.cuda._lazy_init")


@contextmanager
def uninitialised_cuda() -> Iterator[None]:
    """Let factories be traced for a GPU on a machine without one. torch's argument parser calls
    `torch.cuda._lazy_init` for `device="cuda"`, even if a mode takes the call; it raises here.
    """
    cuda: Any = torch.cuda
    if cuda.is_available():
        yield
        return
    cuda._lazy_init = lambda: None
    try:
        yield
    finally:
        cuda._lazy_init = _initialise_cuda


_set_excluded: Callable[[DispatchKey, bool], Mode] = private("torch._C._SetExcludeDispatchKeyGuard")
_is_included: Callable[[DispatchKey], bool] = private(
    "torch._C._dispatch_tls_is_dispatch_key_included"
)
_key_named: Callable[[str], DispatchKey] = private("torch._C._parse_dispatch_key")
BelowViewTracking: Callable[[], Mode] = private("torch._C._AutoDispatchBelowADInplaceOrView")
DispatchModesOff: Callable[[], Mode] = private("torch._C._DisableTorchDispatch")
InferenceMode: Callable[[bool], Mode] = private("torch._C._InferenceMode")
TorchFunctionOn: Callable[[], Mode] = private("torch._C._EnableTorchFunction")
TorchFunctionOfSubclassesOff: Callable[[], Mode] = private("torch._C.DisableTorchFunctionSubclass")
PythonDispatcher: Callable[[], Mode] = private("torch._C._EnablePythonDispatcher")

# Switches and settings.
switch_grad_mode: Callable[[bool], None] = private("torch._C._set_grad_enabled")
is_multithreading_enabled: Callable[[], bool] = private("torch._C._is_multithreading_enabled")
switch_multithreading: Callable[[bool], None] = private("torch._C._set_multithreading_enabled")
DEFAULT_DEVICE: Any = private("torch._GLOBAL_DEVICE_CONTEXT")
device_constructors: Callable[[], set[Callable[..., torch.Tensor]]] = private(
    "torch.utils._device._device_constructors"
)


def above_autograd() -> Mode:
    """Return a block in which autograd records, although a caller is below it."""
    return _set_excluded(DispatchKey.AutogradFunctionality, False)


@cache
def _recording() -> DispatchKey:
    """Return the key of extensions/lazy/, which torch's enumeration for Python leaves out."""
    return _key_named("Fake")


def records_operations() -> bool:
    """Return whether `jitmagic.lazy()` records the operations of this thread."""
    return _is_included(_recording())


def recording_off() -> Mode:
    """Return a block in which operations run although `jitmagic.lazy()` records."""
    return _set_excluded(_recording(), True)
