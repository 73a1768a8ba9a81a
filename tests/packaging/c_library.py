"""The C interface of extensions/deploy through ctypes, and a build of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.processes import ROOT

DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4,
    torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
_OF_NUMBER = {number: dtype for dtype, number in DTYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


def cmake(*args: object) -> None:
    done = subprocess.run(["cmake", *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build(source: Path, folder: Path, *prefixes: Path) -> None:
    """Configure and build a CMake project."""
    torch_at = torch.utils.cmake_prefix_path
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    path = ";".join(map(str, (*prefixes, torch_at)))
    cmake("-S", source, "-B", folder, *generator, f"-DCMAKE_PREFIX_PATH={path}")
    cmake("--build", folder)


def installed(folder: Path) -> Path:
    """Build and install the library; return where."""
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    build(ROOT / "extensions" / "deploy", folder / "build")
    cmake("--install", folder / "build", "--prefix", folder / "prefix")
    return folder / "prefix"


class Program:
    """An artifact loaded by the library. Failures raise RuntimeError with its sentence."""

    def __init__(self, prefix: Path, path: Path) -> None:
        (library,) = prefix.glob("lib*/libjitmagic_run.so")
        self._c = ctypes.CDLL(str(library))
        self._c.jitmagic_error.restype = ctypes.c_char_p
        self._c.jitmagic_count.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._done(self._c.jitmagic_load(str(path).encode(), ctypes.byref(self._handle)))

    def __del__(self) -> None:
        if self._handle:
            self._c.jitmagic_free(self._handle)

    def _done(self, status: int) -> None:
        if status:
            raise RuntimeError(self._c.jitmagic_error().decode())

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        given, alive = (_Tensor * len(inputs))(), []
        for place, tensor in zip(given, inputs, strict=True):
            numbers = ctypes.c_int64 * tensor.dim()
            sizes, strides = numbers(*tensor.shape), numbers(*tensor.stride())
            alive += [sizes, strides]
            place.data, place.dtype, place.rank = (
                tensor.data_ptr(),
                DTYPES[tensor.dtype],
                tensor.dim(),
            )
            place.sizes, place.strides = sizes, strides
        results = ctypes.c_void_p()
        count = ctypes.c_size_t(len(inputs))
        self._done(self._c.jitmagic_run(self._handle, given, count, ctypes.byref(results)))
        try:
            return [self._result(results, n) for n in range(self._c.jitmagic_count(results))]
        finally:
            self._c.jitmagic_free_results(results)

    def _result(self, results: ctypes.c_void_p, n: int) -> torch.Tensor:
        made = _Tensor()
        self._done(self._c.jitmagic_result(results, ctypes.c_size_t(n), ctypes.byref(made)))
        sizes, strides = made.sizes[: made.rank], made.strides[: made.rank]
        copy = torch.empty_strided(sizes, strides, dtype=_OF_NUMBER[made.dtype])
        if copy.numel():
            last = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
            ctypes.memmove(copy.data_ptr(), made.data, (last + 1) * copy.element_size())
        return copy
