"""Calls compiled functions of another processor, in a program that runs under an emulator.

In: an executable that contains tests/kernel/remote.cpp and functions. Out: an object with a
function for each name, which takes what ctypes functions take. Memory is copied there and back, so
every pointer must be a `Pointer`, which knows the tensor's storage, or a ctypes array.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import weakref
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Emulated", "Pointer"]


class Pointer(ctypes.c_void_p):
    """Points to the first element of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.data_ptr())
        self.tensor = tensor


class Emulated:
    """Represents a running program; functions are its attributes."""

    def __init__(self, command: Sequence[str]) -> None:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        self._process, self._requests, self._replies = process, process.stdin, process.stdout
        weakref.finalize(self, process.kill)

    def __getattr__(self, name: str) -> _Function:
        function = self.__dict__[name] = _Function(self, name)
        return function

    def call(self, name: str, args: Sequence[Any]) -> int:
        """Return the integer register of the result."""
        request = [_number(len(name)), name.encode(), _number(len(args))]
        memory: dict[int, tuple[int, bytes]] = {}  # address -> index of the argument, contents
        for index, arg in enumerate(args):
            if (place := _memory(arg)) is None:
                request += [_number(-1), _number(getattr(arg, "value", arg))]
                continue
            address, size, offset = place
            if address in memory:  # several arguments may be views of one storage
                request += [_number(-2 - memory[address][0]), _number(offset)]
                continue
            sent = ctypes.string_at(address, size)
            memory[address] = index, sent
            request += [_number(size), _number(offset), sent]
        self._requests.write(b"".join(request))
        self._requests.flush()
        (result,) = struct.unpack("=q", self._read(8))
        for address, (_, sent) in memory.items():
            ctypes.memmove(address, self._read(len(sent)), len(sent))
        return int(result)

    def _read(self, size: int) -> bytes:
        data = self._replies.read(size)
        assert len(data) == size, f"the program ended with code {self._process.wait()}"
        return data


class _Function:
    """Represents a function; `restype` is the ctypes integer that it returns."""

    def __init__(self, program: Emulated, name: str) -> None:
        self._program, self._name = program, name
        self.restype: Any = ctypes.c_int

    def __call__(self, *args: Any) -> int:
        return int(self.restype(self._program.call(self._name, args)).value)


def _number(value: int) -> bytes:
    return struct.pack("=Q", value & 0xFFFFFFFFFFFFFFFF)


def _memory(arg: Any) -> tuple[int, int, int] | None:
    """Return address and size of the argument's memory, and where in it the argument points."""
    if isinstance(arg, ctypes.Array):
        return ctypes.addressof(arg), ctypes.sizeof(arg), 0
    if not isinstance(arg, Pointer):
        return None
    storage, first = arg.tensor.untyped_storage(), arg.tensor.data_ptr()
    return storage.data_ptr(), storage.nbytes(), first - storage.data_ptr()
