"""Records launches of Triton kernels without a GPU: a driver for Triton, and a libcuda.

Triton compiles for sm_90 and launches through `TritonDriver`; the native runtime launches through a
C library with the names of libcuda and libc10_cuda. Both write the grid, the block, the shared
memory and the bytes of the arguments to one list, so that tests compare them.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

import jitmagic.runtime.user_kernels as native

__all__ = ["Launched", "Recorder"]

LIBRARY = r"""
typedef int (*launch_t)(unsigned long, unsigned, unsigned, unsigned, unsigned, unsigned, void**);
static launch_t seen;
static unsigned long loaded;
void set_launch(launch_t function) { seen = function; }
int cuInit(unsigned flags) { return 0; }
int cuGetErrorString(int status, const char** text) { *text = "an error"; return 0; }
int cuGetErrorName(int status, const char** text) { *text = "an error"; return 0; }
int cuDeviceGet(int* handle, int number) { *handle = number; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)1; return 0; }
int cuCtxPushCurrent_v2(void* context) { return 0; }
int cuCtxPopCurrent_v2(void** context) { return 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuModuleLoadData(void** module, const void* image) { *module = (void*)image; return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = (void*)++loaded;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuStreamIsCapturing(void* stream, int* status) { *status = 0; return 0; }
int cuLaunchKernel(unsigned long function, unsigned x, unsigned y, unsigned z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                   void** arguments, void** extra) {
  return seen ? seen(function, x, y, z, threads, shared, arguments) : 0;
}
struct stream { long unused[2]; };
struct stream _ZN3c104cuda20getCurrentCUDAStreamEa(signed char device) {
  struct stream made = {{0, 0}};
  return made;
}
void* _ZNK3c104cuda10CUDAStream6streamEv(const struct stream* stream) { return 0; }
"""
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_ulong, *[ctypes.c_uint] * 5, ctypes.POINTER(ctypes.c_void_p)
)
_FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H",
    "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """A launch; an address is an int, any other argument bytes."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    arguments: tuple[int | bytes, ...]


class Recorder:
    """Lists of the launches: `through_triton` and `native`. `keeps`: launches are recorded."""

    def __init__(self, folder: Path, keeps: bool = True) -> None:
        self.keeps = keeps
        self.through_triton: list[Launched] = []
        self.native: list[Launched] = []
        self._kernels: dict[int, Any] = {}  # function of the C library -> Triton's kernel
        self._use_library(folder)
        triton.runtime.driver.set_active(_Driver(self))
        self._note_functions()

    def _use_library(self, folder: Path) -> None:
        """Load the C library under the names by which the runtime looks for libraries of CUDA."""
        source = folder / "cuda.c"
        source.write_text(LIBRARY)
        for name in ("libcuda.so.1", "libc10_cuda.so"):
            made = folder / name
            command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", source, "-o", made]
            subprocess.run(command, check=True)
            library = ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)
            if name == "libcuda.so.1":
                self._callback = _LAUNCH(self._launched)
                library.set_launch(self._callback if self.keeps else None)

    def _note_functions(self) -> None:
        """Note which kernel of Triton each function of the C library stands for."""
        read, load = native.read_cubin, native.load_function
        last: list[Any] = []

        def read_cubin(kernel: Any, count: int) -> Any:
            last.append(kernel)
            return read(kernel, count)

        def load_function(*args: Any) -> int:
            function = load(*args)
            self._kernels[function] = last[-1]
            return function

        native.read_cubin, native.load_function = read_cubin, load_function

    def _launched(
        self, function: int, x: int, y: int, z: int, threads: int, shared: int, arguments: Any
    ) -> int:
        kernel = self._kernels[function]
        kinds = list(flat_kinds(kernel.src.signature.values()))
        sizes = [8 if kind.startswith("*") else struct.calcsize(_FORMATS[kind]) for kind in kinds]
        raw = [ctypes.string_at(arguments[n], size) for n, size in enumerate(sizes)]
        given = [
            struct.unpack("Q", one)[0] if kind.startswith("*") else one
            for kind, one in zip(kinds, raw, strict=True)
        ]
        self.native.append(Launched(kernel.name, (x, y, z), threads, shared, tuple(given)))
        return 0


def flat_kinds(kinds: Any) -> Any:
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from flat_kinds(kind)
        elif kind != "constexpr":
            yield kind


def flat_arguments(kinds: Any, values: Any) -> Any:
    """Yield what Triton's launcher passes for each argument of the machine code."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from flat_arguments(kind, value)
        elif kind.startswith("*"):
            yield value.data_ptr()
        elif kind != "constexpr":
            number = float(value) if kind.startswith("fp") else int(value)
            yield struct.pack(_FORMATS[kind], number)


class _Driver:
    """A driver for Triton that compiles for sm_90 and runs nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.utils = self

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
            values = rest[4:]
            given = tuple(flat_arguments(src.signature.values(), values))
            threads = metadata.num_warps * 32
            made = Launched(metadata.name, (x, y, z), threads, metadata.shared, given)
            self.recorder.through_triton.append(made)

        return launch if self.recorder.keeps else lambda *args: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10}

    def load_binary(self, name: str, image: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 1, 1, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        pass
