"""Loads shared objects from memory, so that the verified bytes are the code that runs.

In: the bytes of a shared object. Out: an Image, whose functions can be called while it lives; with
its last reference the library is unloaded. The bytes are mapped from sealed anonymous memory, which
no other process can change and no `noexec` mount restricts. Where the system lacks or forbids that,
a private file is used and removed at once. Equal bytes are loaded once.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import fcntl
import hashlib
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..platforms import loads_elf

__all__ = ["Image", "ImageError", "load_image"]

_PT_LOAD = 1
_RTLD_NOLOAD, _RTLD_NODELETE = 0x4, 0x1000
_IN_MEMORY = "/proc/self/fd/"


class ImageError(Exception):
    """Says that the bytes cannot be loaded, or lack a symbol."""


class Image:
    """Represents a loaded shared object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        _pin_dependencies(library)
        # Not at exit: threads may still run its code.
        weakref.finalize(self, _ctypes.dlclose, library._handle).atexit = False

    def address(self, symbol: str) -> int:
        """Return the address of a function; raises ImageError if there is none."""
        try:
            function = getattr(self._library, symbol)
        except AttributeError as error:
            raise ImageError(str(error)) from error
        value = ctypes.cast(function, ctypes.c_void_p).value
        assert value is not None
        return value


_loaded: weakref.WeakValueDictionary[bytes, Image] = weakref.WeakValueDictionary()
_loading = threading.Lock()


def load_image(data: bytes, name: str, folders: Sequence[Path] = ()) -> Image:
    """Load the library in `data`. Debuggers show `name`; `folders` are further places for
    executable files besides the temporary folder. Raises ImageError.
    """
    if problem := _malformed(data):
        raise ImageError(problem)
    digest = hashlib.sha256(data).digest()
    with _loading:
        image = _loaded.get(digest)
        if image is None:
            image = _loaded[digest] = Image(_map(data, name, folders))
    return image


def _malformed(data: bytes) -> str:
    """Return why the loader must not get the bytes, or "". A segment that extends beyond the file
    would cause not an error but SIGBUS.
    """
    if not loads_elf():
        return ""
    if data[:4] != b"\x7fELF" or data[4:5] != b"\x02":
        return "it is not a 64-bit ELF file"
    order = "<" if data[5:6] == b"\x01" else ">"
    try:
        (table,) = struct.unpack_from(f"{order}Q", data, 32)
        size, count = struct.unpack_from(f"{order}HH", data, 54)
        for n in range(count):
            kind, _, offset, _, _, length = struct.unpack_from(
                f"{order}IIQQQQ", data, table + n * size
            )
            if kind == _PT_LOAD and offset + length > len(data):
                return "it ends before its last segment"
    except struct.error:
        return "it ends before its last segment"
    return ""


def _map(data: bytes, name: str, folders: Sequence[Path]) -> ctypes.CDLL:
    """Load from memory, else from a file in the first folder that permits execution."""
    failures: list[str] = []
    for folder in (None, Path(tempfile.gettempdir()), *folders):
        try:
            with _in_memory(data, name) if folder is None else _in_file(data, folder) as path:
                return ctypes.CDLL(path)
        except (OSError, AttributeError) as error:  # AttributeError: no memfd on this system
            failures.append(str(error))
    raise ImageError("; ".join(dict.fromkeys(failures)))


@contextlib.contextmanager
def _in_memory(data: bytes, name: str) -> Iterator[str]:
    fd = os.memfd_create(f"jitmagic-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield _unique_path(fd)
    finally:
        os.close(fd)


def _unique_path(fd: int) -> str:
    """Return a path of the descriptor that no loaded library has. The loader identifies libraries
    by path, and descriptor numbers are reused. `./` and `/` do not change a path, so they encode
    the binary digits of the file's inode: `/proc/self/fd/.//5` is inode 2. The inode is unique
    while the library is mapped. A counter would restart when the package is imported again; keeping
    descriptors open would cost one per kernel.
    """
    bits = f"{os.fstat(fd).st_ino:b}"
    return _IN_MEMORY + "".join("./" if bit == "1" else "/" for bit in bits) + str(fd)


@contextlib.contextmanager
def _in_file(data: bytes, folder: Path) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="jitmagic-", suffix=".so", dir=folder) as file:
        file.write(data)
        file.flush()
        yield file.name


# ------------------------------------------------------------------ dependencies of a library


class _LinkMap(ctypes.Structure):
    """<link.h>: the loader's list of libraries, in the order in which they were loaded."""


_LinkMap._fields_ = [
    ("address", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(_LinkMap)),
    ("previous", ctypes.POINTER(_LinkMap)),
]


def _pin_dependencies(library: ctypes.CDLL) -> None:
    """Pin all libraries loaded as dependencies. Threads of an OpenMP runtime wait in its code for
    the next parallel region, so it must never be unloaded. The runtime depends on the compiler;
    therefore everything after the new library in the loader's list is pinned, except other images,
    which are unloaded with their users. dl_iterate_phdr is no alternative: it holds the loader's
    lock while its callback waits for the GIL, which another thread may hold in dlopen.
    """
    if not loads_elf():
        return
    # A handle of dlopen is a link map, on glibc and musl alike.
    entry = ctypes.cast(library._handle, ctypes.POINTER(_LinkMap)).contents.next
    while entry:
        name = entry.contents.name
        if name and not name.startswith(_IN_MEMORY.encode()):
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.fsdecode(name), mode=_RTLD_NOLOAD | _RTLD_NODELETE)
        entry = entry.contents.next
