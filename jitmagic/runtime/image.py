"""Shared objects from memory: the bytes that were verified are the code that runs.

In: the bytes of a shared object. Out: an Image, whose functions can be called as long as it lives;
when the last reference goes, the library is unloaded. The bytes are mapped from sealed anonymous
memory, which no other process can change and to which no `noexec` mount applies; where a system
has none or forbids to execute it, from a private file that is gone again at once. Equal bytes are
loaded once.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import fcntl
import hashlib
import os
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["Image", "ImageError", "load_image"]

_PT_LOAD = 1
_RTLD_NOLOAD, _RTLD_NODELETE = 0x4, 0x1000
_IN_MEMORY = "/proc/self/fd/"


class ImageError(Exception):
    """The bytes cannot be loaded, or lack a symbol."""


class Image:
    """A loaded shared object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        _keep_runtimes(library)
        # Not at exit: threads may still be inside.
        weakref.finalize(self, _ctypes.dlclose, library._handle).atexit = False

    def address(self, symbol: str) -> int:
        """The entry point of a function as an integer; ImageError if there is none."""
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
    """The library in `data`; `name` is what debuggers show. `folders`: where else than in the
    system's temporary folder files may be executed. Raises ImageError.
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
    """Why the loader must not see the bytes: what a segment has beyond the file's end would be no
    error but a signal (SIGBUS).
    """
    if not sys.platform.startswith("linux"):
        return ""
    if data[:4] != b"\x7fELF" or data[4:5] != b"\x02":
        return "it is no 64-bit ELF file"
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
    """From memory, else from a file in the first folder that takes one and lets it be executed."""
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
        yield _spelled(fd)
    finally:
        os.close(fd)


def _spelled(fd: int) -> str:
    """A path of the descriptor that no loaded library has: the loader takes two libraries with the
    same path for one, and numbers of descriptors are used again. `./` and `/` add nothing to a
    path, so the binary digits of the file's inode are spelled with them: `/proc/self/fd/.//5` is
    inode 2. It is the file's alone while the library is mapped; a counter would start over when
    the package is imported again. To keep the descriptor open would cost one for every kernel.
    """
    bits = f"{os.fstat(fd).st_ino:b}"
    return _IN_MEMORY + "".join("./" if bit == "1" else "/" for bit in bits) + str(fd)


@contextlib.contextmanager
def _in_file(data: bytes, folder: Path) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="jitmagic-", suffix=".so", dir=folder) as file:
        file.write(data)
        file.flush()
        yield file.name


# ------------------------------------------------------------------ what a library brings with it


class _LinkMap(ctypes.Structure):
    """<link.h>: the loader's list of libraries, in the order in which they were loaded."""


_LinkMap._fields_ = [
    ("address", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(_LinkMap)),
    ("previous", ctypes.POINTER(_LinkMap)),
]


def _keep_runtimes(library: ctypes.CDLL) -> None:
    """Keep loaded what came as a dependency, for good: an OpenMP runtime has threads, and they wait
    in its code for the next parallel region. Which runtime it is depends on the compiler, so all is
    kept that stands behind the new library in the loader's list, but for other images, which are
    unloaded with their users. dl_iterate_phdr would hold the loader's
    lock while its callback waits for Python's, which another thread may hold in dlopen.
    """
    if not sys.platform.startswith("linux"):
        return
    # A handle of dlopen is a link map, on glibc and musl alike.
    entry = ctypes.cast(library._handle, ctypes.POINTER(_LinkMap)).contents.next
    while entry:
        name = entry.contents.name
        if name and not name.startswith(_IN_MEMORY.encode()):
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.fsdecode(name), mode=_RTLD_NOLOAD | _RTLD_NODELETE)
        entry = entry.contents.next
