"""Encodes a description as JSON and writes it with its tensors and kernels to one archive.

In: nested data with tensors, dtypes and devices. Out: a zip archive whose entries are stored
without compression: `artifact.json`, `tensors/N`, `kernels/HASH.so`, and `checksums.json` with the
SHA-256 of each other entry. docs/pages/artifact.md has the format.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError

__all__ = ["Register", "Writer"]

_NAMED: Mapping[type, str] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}
_HEADER_BYTES = 30  # of an entry in front of its name and its extra field
_ALIGNMENT = 64
_PADDING_ID = 0x4D4A  # no registered kind of extra field
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents give equal files


@dataclass(frozen=True, slots=True)
class Register:
    """Stands for a number that is computed from the sizes of a call."""

    index: int


class Writer:
    """Collects the files of one archive. Equal tensors in one memory, and equal kernels, are stored
    once.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._tensors: dict[object, str] = {}
        self._held: list[torch.Tensor] = []  # so that no other tensor gets their memory

    def encode(self, value: Any) -> Any:
        """Return the value as JSON's data."""
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return {"$": "float", "hex": value.hex()}
            case tuple():
                return [self.encode(item) for item in value]
            case list():
                return {"$": "list", "items": [self.encode(item) for item in value]}
            case dict():
                items = [[self.encode(key), self.encode(item)] for key, item in value.items()]
                return {"$": "dict", "items": items}
            case Register():
                return {"$": "Register", "index": value.index}
            case torch.Tensor():
                return self._tensor(value)
            case torch.device():
                return {"$": "device", "name": str(value)}
        if (kind := _NAMED.get(type(value))) is not None:
            return {"$": kind, "name": str(value).removeprefix("torch.")}
        raise UsageError(f"a {type(value).__name__} cannot be saved: {value!r}")

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        given = tensor.detach()
        if given.layout is not torch.strided or given.is_conj() or given.is_neg():
            given = given.to_dense() if given.layout is not torch.strided else given.clone()
        key = (given.data_ptr(), given.dtype, tuple(given.shape), given.stride())
        if key not in self._tensors or not given.numel():
            self._tensors[key] = name = f"tensors/{len(self._tensors)}"
            self._files[name] = _memory(given)
            self._held.append(given)
        return {
            "$": "tensor",
            "file": self._tensors[key],
            "dtype": self.encode(given.dtype),
            "shape": list(given.shape),
            "stride": list(given.stride()),
        }

    def add_kernels(self, library: bytes) -> str:
        """Store a library; return its name in the archive."""
        name = f"kernels/{hashlib.sha256(library).hexdigest()}.so"
        self._files[name] = library
        return name

    def finish(self, described: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        """Write the archive to `path`, at once or not at all."""
        files = {"artifact.json": _json(described), **self._files}
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        files["checksums.json"] = _json(sums)
        place = Path(path)
        fd, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                for name, data in files.items():
                    entry = zipfile.ZipInfo(name, _EPOCH)
                    entry.extra = _padding(file.tell() + _HEADER_BYTES + len(name))
                    archive.writestr(entry, data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, place)
        except BaseException:  # an interrupt too: no temporary file stays
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _padding(start: int) -> bytes:
    """Return the extra field of an entry whose data would start there without it: it aligns the
    data, so that tensors are used where the file is in memory.
    """
    count = -(start + 4) % _ALIGNMENT
    return struct.pack("<HH", _PADDING_ID, count) + bytes(count)


def _json(described: Any) -> bytes:
    return json.dumps(described, separators=(",", ":"), allow_nan=False).encode()


def _memory(tensor: torch.Tensor) -> bytes:
    """Return the bytes from the tensor's first element to its last one in memory."""
    if not tensor.numel():
        return b""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), (last + 1) * tensor.element_size())
