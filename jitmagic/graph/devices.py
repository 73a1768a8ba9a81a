"""Decides on which device the result of a torch call lives, and how to run the call on meta
tensors: the kernels of devices differ in layouts and dtypes (`kernels_on`).

Input: a call's target, its arguments (meta tensors in place of the real ones) and the real device
of each. Output: a `Placement`: the result's device and the arguments for the meta run. A
combination that eager would reject, or that no rule covers, raises `MixedDevices`; the call then
runs in eager, which raises its own error or returns a result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..devices import row_of
from ..lazy_dataclass import dataclass
from ..operators.operation import is_in_place, operation, takes_device
from ..torch_types import Kwargs
from .node_meta import tensors_in

__all__ = [
    "CPU", "MixedDevices", "Placement", "as_device", "kernel_device", "kernels_on", "place",
]  # fmt: skip

META = torch.device("meta")
CPU = torch.device("cpu")


class MixedDevices(Exception):
    """Raised for a combination of devices that no rule covers."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The real device of every tensor result, and the call to run on meta tensors."""

    device: torch.device
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    moves: bool = False  # the result is on another device, so it is never the first argument itself
    method: str | None = None  # the method to run on meta tensors, if not `name`


class _Kernels(threading.local):
    """The device whose kernels this thread infers; meta tensors do not say where the data are."""

    device = CPU


_KERNELS = _Kernels()


@contextmanager
def kernels_on(device: torch.device) -> Iterator[None]:
    """Infer the results of calls in the block as kernels of that device give them."""
    before, _KERNELS.device = _KERNELS.device, device
    try:
        yield
    finally:
        _KERNELS.device = before


def kernel_device() -> torch.device:
    """Return the device whose kernels are inferred; the CPU outside of `kernels_on`."""
    return _KERNELS.device


def as_device(given: Any) -> torch.device:
    """Convert a device argument, filling in the current index as torch does."""
    if isinstance(given, int):
        accelerator = torch.accelerator.current_accelerator()
        return torch.device("cuda" if accelerator is None else accelerator.type, given)
    device = torch.device(given)
    return row_of(device).indexed(device)


def place(
    name: str,
    args: tuple[object, ...],
    kwargs: Kwargs,
    device_of: Callable[[torch.Tensor], torch.device],
) -> Placement:
    """Decide the device of the call `name` (the bare name of the function or method)."""
    changed = dict(kwargs)
    asked = changed.get("device")
    if asked is not None:
        changed["device"] = META
    tensors = list(tensors_in((args, dict(kwargs))))
    if not tensors:
        made_on = as_device(asked) if asked is not None else CPU
        return Placement(
            made_on, args, {**changed, "device": META} if takes_device(name) else changed
        )
    own = device_of(tensors[0])
    mover = _MOVERS.get(name)
    if mover is not None and args and args[0] is tensors[0]:
        return mover(own, args, changed, asked, device_of)
    if asked is not None:
        return Placement(as_device(asked), args, changed)
    if any(device_of(out) != own for out in tensors_in(changed.get("out"))):
        raise MixedDevices(_sentence({device_of(tensor) for tensor in tensors}))
    return Placement(_common(name, tensors, device_of), args, changed)


def _common(
    name: str, tensors: list[torch.Tensor], device_of: Callable[[torch.Tensor], torch.device]
) -> torch.device:
    devices = {device_of(tensor) for tensor in tensors}
    own = device_of(tensors[0])
    mixes = operation(name).mixes
    if len(devices) == 1 or mixes == "any":
        return own
    rest = devices - {CPU}
    if len(rest) == 1:
        (accelerator,) = rest
        on_cpu = [tensor for tensor in tensors if device_of(tensor) == CPU]
        # A kernel accepts one CPU scalar; `where` copies several to the device.
        scalars = all(t.dim() == 0 for t in on_cpu) and (len(on_cpu) == 1 or name == "where")
        if scalars and mixes == "scalars":
            if is_in_place(name) and own == CPU:
                raise MixedDevices(_sentence(devices))
            return accelerator
        if mixes == "indexes" and own == accelerator:
            return own
    raise MixedDevices(_sentence(devices))


def _sentence(devices: set[torch.device]) -> str:
    return "tensors on " + " and ".join(sorted(map(str, devices)))


def _to(
    own: torch.device,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    asked: object,
    device_of: Callable[[torch.Tensor], torch.device],
) -> Placement:
    target, rest = own, args[1:]
    if asked is not None:
        target = as_device(asked)
    elif "other" in kwargs:
        target = device_of(kwargs["other"])
    elif rest and isinstance(rest[0], torch.Tensor):
        target = device_of(rest[0])
    elif rest and isinstance(rest[0], str | int | torch.device) and not isinstance(rest[0], bool):
        target = as_device(rest[0])
        rest = (META, *rest[1:])
    return Placement(target, (args[0], *rest), kwargs, moves=target != own)


def _cpu(own: torch.device, args: Any, kwargs: Any, asked: object, device_of: object) -> Placement:
    kept = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    return Placement(CPU, (args[0], META), kept, own != CPU, "to")


def _cuda(
    own: torch.device, args: Any, kwargs: object, asked: object, device_of: object
) -> Placement:
    if not torch.cuda.is_available():
        raise MixedDevices("no CUDA device is available")
    index = asked if asked is not None else args[1] if len(args) > 1 else None
    target = as_device("cuda" if index is None else index)
    return Placement(target, (args[0], META), {}, target != own, "to")


def _type_as(own: torch.device, args: Any, kwargs: Any, asked: object, device_of: Any) -> Placement:
    target = device_of(next(tensors_in((args[1:], kwargs))))
    return Placement(target, args, kwargs, moves=target != own)


_MOVERS: dict[str, Callable[..., Placement]] = {
    "to": _to,
    "cpu": _cpu,
    "cuda": _cuda,
    "type_as": _type_as,
}
