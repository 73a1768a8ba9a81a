"""Defines the row of a type of devices, and the record of one machine that kernels depend on.

In: a torch.device. Out: `row_of`, whose fields answer what stages ask about it, and `find_target`,
which turns options into one hashable record. Equal records give equal kernels, and the record is
part of every cache key. `weaker_target` returns the tier to try after one that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch.nn.attention import SDPBackend

from ..lazy_dataclass import dataclass, replace
from ..protocols import Protocol

__all__ = [
    "AttentionFacts",
    "Device",
    "Target",
    "TargetOptions",
    "add",
    "all_rows",
    "find_target",
    "is_compiled",
    "remove",
    "row_of",
    "weaker_target",
]


class TargetOptions(Protocol):
    """The options that a target depends on."""

    @property
    def cpu_tier(self) -> str: ...
    @property
    def cxx(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the facts of one device. `tier` names the code generator: triton, cpp, numba, a
    registered renderer, or aten, which generates none.
    """

    device: str  # "cpu", "cuda", or the name of a registered device
    tier: str
    why: str  # the sentence that explains the tier
    isa: str  # cpu: "avx512" | "avx2" | "neon" | "scalar"; cuda: "sm_90"
    lanes: int  # float32 lanes of one vector register (cpu)
    threads: int  # cores that parallel loops use; 0 on cuda
    l2_bytes: int
    cxx: str = ""  # path of the C++ compiler, empty when there is none
    multiprocessors: int = 0
    processor: str = ""  # a row of processors.py; empty: this machine's
    resident_threads: int = 0  # that a multiprocessor can hold; 0: unknown


class AttentionFacts(NamedTuple):
    """Describes attention for the choice of its kernels; sizes are those of one call.

    mask: kind of the mask
    trains: it will be differentiated
    varies: sizes differ from call to call
    """

    device: torch.device
    dtype: torch.dtype
    rows: int
    columns: int
    mask: Literal["none", "causal", "tensor"]
    trains: bool
    varies: bool


def _no_kernels(facts: AttentionFacts) -> tuple[SDPBackend, ...]:
    return ()


def _generates_none(facts: AttentionFacts) -> bool:
    return False


def _only_aten(failed: Target, options: TargetOptions) -> Target:
    return replace(failed, tier="aten", why=f"{failed.tier} failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Holds what stages ask about one type of devices.

      target(device, options)   the facts of a machine, and the tier of its kernels
      weaker(target, options)   the tier after one that failed
      current_index()           the device that the name without an index means; None: it has none
      kernels                   whose results ATen's kernels give: rounding, layouts, missing dtypes
      costly                    time of exp, erf or tanh, relative to a product of one element
      rereads                   kernels are limited by memory: a saved tensor costs its reading
      caches_memory             allocating is cheap, and large tensors are better not in one pool
      has_tensor_cores          matrix products are faster with aligned rows
      turns_images              convolutions are faster with channels_last images
      has_atomics               kernels of many threads may add into one element
      runs_cuda                 it has CUDA's driver: streams with events, graphs
      traces_autocast           torch.autocast for this type is part of the trace, and guarded
      attention(facts)          torch's fused kernels that are faster than products and a softmax
      generates_attention(facts)  so are generated kernels, which differentiate any bias

    Calls with tensors on other types of devices run in eager.
    """

    type: str
    target: Callable[[torch.device, TargetOptions], Target]
    weaker: Callable[[Target, TargetOptions], Target] = _only_aten
    current_index: Callable[[], int] | None = None
    kernels: Literal["cpu", "cuda"] = "cpu"
    costly: int = 4
    rereads: bool = False
    caches_memory: bool = False
    has_tensor_cores: bool = False
    turns_images: bool = False
    has_atomics: bool = False
    runs_cuda: bool = False
    traces_autocast: bool = False
    attention: Callable[[AttentionFacts], tuple[SDPBackend, ...]] = _no_kernels
    generates_attention: Callable[[AttentionFacts], bool] = _generates_none

    def indexed(self, device: torch.device) -> torch.device:
        """Fill in the index of the current device, as tensors report it."""
        if device.index is not None or self.current_index is None:
            return device
        return torch.device(device.type, self.current_index())


_ROWS: dict[str, Device] = {}


def add(row: Device) -> Device:
    """Add the row of a type of devices; return it."""
    _ROWS[row.type] = row
    return row


def remove(type: str) -> None:
    """Remove a row that an extension added."""
    _ROWS.pop(type, None)


def all_rows() -> tuple[Device, ...]:
    """Return the rows of all types of devices that graphs are compiled for."""
    return tuple(_ROWS.values())


def is_compiled(device: torch.device) -> bool:
    """Return whether graphs are compiled for devices of this type."""
    return device.type in _ROWS


def row_of(device: torch.device) -> Device:
    """Return the row of a device; that of the CPU for a type without one, such as meta."""
    return _ROWS.get(device.type) or _ROWS["cpu"]


def find_target(device: torch.device, options: TargetOptions) -> Target:
    """Return the facts of `device`; cheap after the first call for the same arguments."""
    return _ROWS[device.type].target(device, options)


def weaker_target(failed: Target, options: TargetOptions) -> Target:
    """Return the fastest tier that is left after `failed` could not build a graph."""
    return _ROWS[failed.device].weaker(failed, options)
