"""Registers renderers, and the device that a package gives to torch (PrivateUse1).

Input: a renderer, which writes kernels as text, with the function that loads them; and the facts of
a device. Output: `RENDERERS`, which codegen and runtime/load.py ask for tiers that are not
jitmagic's own, and a row of the table of devices (devices/device.py).

An error in either is a warning that names the user's line, and the graph runs by the next tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypedDict, Unpack

import torch

from ..devices import Device, Target, add, remove
from ..devices.device import TargetOptions
from ..errors import CompileFailed, ExtensionFailed, UsageError
from ..lazy_dataclass import dataclass
from .registry import Registration, Registry

__all__ = [
    "RENDERERS",
    "KernelTexts",
    "RegisteredRenderer",
    "register_device",
    "register_renderer",
]

OWN = ("auto", "aten", "blocks", "cpp", "numba", "triton")


class KernelTexts(Protocol):
    """Writes the kernels of nests; `extend.LoopRenderer` is a base for it."""

    def render(self, nests: Any, buffers: Any, target: Target, configs: Any = ...) -> Any:
        """Return a KernelSource."""
        ...


Load = Callable[[Any, Target], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredRenderer:
    """A renderer with the function that loads its kernels."""

    name: str
    renderer: Any
    load: Load

    def call(self, what: str, function: Callable[..., Any], *args: object) -> Any:
        """Call a function of the user; its errors are ExtensionFailed."""
        try:
            return function(*args)
        except CompileFailed:  # CannotRender, for one
            raise
        except Exception as error:  # it may raise anything
            raise ExtensionFailed(what, repr(self.name), function, error) from error


RENDERERS: Registry[RegisteredRenderer] = Registry("renderer")
_DEVICES: Registry[Device] = Registry("device", on_remove=remove)


def register_renderer(name: str, renderer: KernelTexts, /, *, load: Load) -> Registration:
    """Register a code generator for devices, and for CPU tensors by `options={"cpu_tier": name}`.

    `renderer` has `render(nests, buffers, target, configs)`, which returns a KernelSource.
    `load(source, target)` builds its text, and returns a ctypes function for each name in
    `source.symbols`: `int kernel(void* const* args)`, called on the host with pointers to the
    arguments' elements in the device's memory. It returns 1 if an index is out of range, else 0. A
    0-dim CPU tensor among the arguments is a pointer to host memory. The last argument of a kernel
    with dynamic sizes is an array of int64 on the host.

    Returns a Registration. Raises UsageError for a name that is taken.
    """
    if name in OWN:
        raise UsageError(f"there is a renderer {name!r} already: choose another name")
    if not callable(getattr(renderer, "render", None)) or not callable(load):
        raise UsageError("a renderer has a method `render`, and `load` is a function")
    return RENDERERS.add(name, RegisteredRenderer(name, renderer, load))


class DeviceFacts(TypedDict, total=False):
    """The fields of a device's row that `register_device` takes."""

    current_index: Callable[[], int]
    kernels: Literal["cpu", "cuda"]
    costly: int
    caches_memory: bool
    has_tensor_cores: bool
    turns_images: bool
    has_atomics: bool


def register_device(
    type: str,
    /,
    *,
    renderer: str | None = None,
    isa: str = "",
    threads: int = 1,
    l2_bytes: int = 1 << 20,
    **facts: Unpack[DeviceFacts],
) -> Registration:
    """Compile graphs for the device type that the program gave torch's PrivateUse1 backend.

      renderer: a registered name; without it graphs are captured, and run operator by operator
      current_index: function that returns the current device; default: that of the device's module
      kernels: whose results the device's ATen kernels give, "cpu" or "cuda": rounding and layouts
      isa, threads, l2_bytes: for `target` of the renderer; `l2_bytes` bounds tiles of a schedule
      costly: time of exp or tanh, relative to a product of two elements, for what is recomputed
      caches_memory: allocating is cheap
      has_tensor_cores: products need aligned rows
      turns_images: convolutions prefer channels_last
      has_atomics: kernels may add into one element from many threads

    Returns a Registration. Raises UsageError for another type than PrivateUse1's, a renderer that
    is not registered, and a type that is registered already.
    """
    if type != (known := torch.device("privateuseone").type):
        raise UsageError(
            f"{type!r} is not the device of torch's PrivateUse1 backend, which is {known!r} here: "
            "call torch.utils.rename_privateuse1_backend first"
        )
    if renderer is not None and renderer not in RENDERERS.rows:
        raise UsageError.unknown("renderer", renderer, tuple(RENDERERS.rows))

    def target(device: torch.device, options: TargetOptions) -> Target:
        is_there = renderer is not None and renderer in RENDERERS.rows
        tier, why = (renderer, "it is registered") if is_there else ("aten", "no renderer")
        return Target(type, str(tier), why, isa, 1, threads, l2_bytes)

    facts.setdefault("current_index", _current_index(type))
    row = Device(type=type, target=target, **facts)
    registration = _DEVICES.add(type, row)
    add(row)
    return registration


def _current_index(type: str) -> Callable[[], int]:
    """Return the function that gives the index of the current device; it is 0 without one."""
    module = getattr(torch, type, None)
    found: Callable[[], int] = getattr(module, "current_device", lambda: 0)
    return found
