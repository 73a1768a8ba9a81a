"""Reads and sets the autocast mode of the thread, as an `Autocast`: the dtype by device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction
from .node_meta import changes_mode

__all__ = [
    "DEVICES",
    "OFF",
    "Autocast",
    "autocast_as",
    "preserving_autocast",
    "read_autocast",
    "restoring_modes",
]

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Autocast:
    """The dtype that products are computed in, by device; None if autocast is off."""

    cpu: torch.dtype | None = None
    cuda: torch.dtype | None = None

    def dtype_on(self, device: str) -> torch.dtype | None:
        """Return the dtype that `device` casts to; None also for devices that jitmagic does not
        support.
        """
        dtype: torch.dtype | None = getattr(self, device) if device in DEVICES else None
        return dtype


OFF = Autocast()


def read_autocast() -> Autocast:
    """Return the autocast mode of this thread."""
    return Autocast(
        *(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in DEVICES)
    )


def _set(mode: Autocast) -> None:
    for device, dtype in zip(DEVICES, (mode.cpu, mode.cuda), strict=True):
        torch.set_autocast_enabled(device, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(device, dtype)


@contextmanager
def preserving_autocast() -> Iterator[None]:
    """Restore autocast after the block, and disable its cache in it: the cache would hold tensors
    of a trace, or weights from before an optimizer step.
    """
    enabled = [torch.is_autocast_enabled(device) for device in DEVICES]
    dtypes = [torch.get_autocast_dtype(device) for device in DEVICES]
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        for device, on, dtype in zip(DEVICES, enabled, dtypes, strict=True):
            torch.set_autocast_enabled(device, on)
            torch.set_autocast_dtype(device, dtype)


def restoring_modes(gm: torch.fx.GraphModule, run: AnyFunction) -> AnyFunction:
    """Make a torch-level graph that sets modes restore the caller's modes, also if it raises."""
    if not any(map(changes_mode, gm.graph.nodes)):
        return run

    def call(*inputs: torch.Tensor) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled()), preserving_autocast():
            return run(*inputs)

    return call


@contextmanager
def autocast_as(mode: Autocast) -> Iterator[None]:
    """Run the block under the autocast mode `mode`."""
    with preserving_autocast():
        _set(mode)
        yield
