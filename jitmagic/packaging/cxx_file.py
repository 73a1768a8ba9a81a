"""Collects the files of an archive for C++: the description as JSON, its tensors and kernels."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..artifact.codec import Json, Writer
from ..lazy_dataclass import dataclass
from .archive import write_archive

__all__ = ["CxxWriter", "Register"]


@dataclass(frozen=True, slots=True)
class Register:
    """Stands for a number that is computed from the sizes of a call."""

    index: int


class CxxWriter(Writer):
    """Writes values as JSON. Tensors and kernels become files of the archive, equal ones once."""

    def __init__(self) -> None:
        tensors: dict[type, Callable[[Any, Any], Json]] = {
            torch.Tensor: CxxWriter._file_of,
            torch.nn.Parameter: CxxWriter._file_of,
        }
        super().__init__({"Register": Register}, tensors, shares=False)
        self._files: dict[str, bytes] = {}
        self._names: dict[object, str] = {}
        self._held: list[torch.Tensor] = []  # so that no other tensor gets their memory

    def _file_of(self, tensor: torch.Tensor) -> Json:
        given = tensor.detach()
        if given.layout is not torch.strided:
            given = given.to_dense()
        if given.is_conj() or given.is_neg():
            given = given.clone()
        key = (given.data_ptr(), given.dtype, tuple(given.shape), given.stride())
        if key not in self._names or not given.numel():
            self._names[key] = name = f"tensors/{len(self._held)}"
            self._files[name] = _memory(given)
            self._held.append(given)
        return {
            "$": "tensor",
            "file": self._names[key],
            "dtype": self.write(given.dtype),
            "shape": list(given.shape),
            "stride": list(given.stride()),
        }

    def add_kernels(self, library: bytes) -> str:
        """Add a shared object; return its name in the archive."""
        name = f"kernels/{hashlib.sha256(library).hexdigest()}.so"
        self._files[name] = library
        return name

    def finish(self, described: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Write the archive."""
        text = json.dumps(described, separators=(",", ":"), allow_nan=False)
        write_archive(path, {"artifact.json": text.encode(), **self._files})


def _memory(tensor: torch.Tensor) -> bytes:
    """Return the bytes from the tensor's first element to its last one in memory."""
    if not tensor.numel():
        return b""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), (last + 1) * tensor.element_size())
