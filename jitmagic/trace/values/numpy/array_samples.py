"""Makes sample arrays for calls of numpy, with the layouts of the program's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....lazy_dataclass import dataclass
from ..numpy_scalars import np

__all__ = ["ArraySpec", "CannotSample", "edge_values", "materialised", "numpy_array", "samples"]

_SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 1e-3, 7.0, -8.0, 100.3,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
_WHOLE = (0, 1, -1, 2, -2, 3, -3, 7, -7, 8, 13, 100, -100)


class CannotSample(Exception):
    """Raised with the reason why samples tell nothing about a call."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The layout of an argument or result.

    `kind` is np.ndarray, a scalar class of numpy, or torch.Tensor. Arrays with the same `storage`
    index share memory, in which each begins at its `offset`; None means memory of its own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    dtype: torch.dtype
    kind: type
    storage: int | None = None
    offset: int = 0  # in elements

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_contiguous(self) -> bool:
        return torch.empty_strided(self.shape, self.stride, device="meta").is_contiguous()

    @property
    def numbers(self) -> tuple[object, ...]:
        """Return the numbers that may be Sizes."""
        return (*self.shape, *self.stride, self.offset)


def materialised(slots: Sequence[ArraySpec], data: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the arguments as tensors, which share memory where the program's arrays do."""
    ends: dict[object, int] = {}
    for index, spec in enumerate(slots):
        group = index if spec.storage is None else ("shared", spec.storage)
        reach = sum((n - 1) * step for n, step in zip(spec.shape, spec.stride, strict=True))
        end = spec.offset + reach + 1 if spec.size else 0
        ends[group] = max(end, ends.get(group, 0))
    storages: dict[object, torch.Tensor] = {}
    memory = []
    for index, (spec, values) in enumerate(zip(slots, data, strict=True)):
        group = index if spec.storage is None else ("shared", spec.storage)
        if group not in storages:
            storages[group] = torch.zeros(ends[group], dtype=spec.dtype)
        if storages[group].dtype is not spec.dtype:
            raise CannotSample("its arguments share memory and have different dtypes")
        part = storages[group].as_strided(spec.shape, spec.stride, spec.offset)
        memory.append(part.copy_(values.reshape(spec.shape)))
    return memory


def samples(spec: ArraySpec, index: int, number: int) -> torch.Tensor:
    """Return samples of one argument by round: normal, whole, with a nan, with infinities, and
    positive definite matrices.
    """
    values = np.random.RandomState(31 * index + number).randn(spec.size) * 3
    if number == 1:
        values = np.round(np.abs(values) * 300)  # squares overflow in float16
    elif number == 2 and spec.size:
        values[spec.size // 2] = np.nan
    elif number == 3:
        values[: spec.size // 3] = np.inf
        values[: spec.size // 5] = -np.inf
    elif number == 4 and len(spec.shape) > 1 and spec.shape[-1] == spec.shape[-2]:
        matrices = values.reshape(spec.shape)
        products = matrices @ np.swapaxes(matrices, -1, -2)
        values = (products + 9 * np.eye(spec.shape[-1])).reshape(-1)
    if not (spec.dtype.is_floating_point or spec.dtype.is_complex):
        values = np.nan_to_num(values, posinf=5, neginf=-5)
        return torch.from_numpy(values).to(torch.int64).to(spec.dtype)
    return torch.from_numpy(values).to(spec.dtype)


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """Return values of a dtype for which implementations tend to differ."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor([*_SPECIAL, torch.finfo(dtype).max, torch.finfo(dtype).tiny]).to(dtype)
    if dtype.is_complex:
        parts = torch.tensor(_SPECIAL, dtype=torch.float64)
        return torch.complex(parts, parts.flip(0)).to(dtype)
    limits = torch.iinfo(dtype)
    inside = [number for number in _WHOLE if limits.min <= number <= limits.max]
    return torch.tensor([*inside, limits.min, limits.max], dtype=dtype)


def numpy_array(spec: ArraySpec, memory: torch.Tensor) -> object:
    if spec.kind is torch.Tensor:
        return memory
    return memory.numpy() if spec.kind is np.ndarray else memory.numpy()[()]
