"""How objects become a shared library: the commands to try, the cheapest that may do first.

In: objects, their paths and bytes. Out: command lines. What the objects leave undefined says what
they need. Most kernels call nothing, so the linker is run directly and reads no library: 2.4 ms of
processor time, 4.8 through the compiler's driver (g++ 12). Those that call something are linked
with the libraries that it may be in (6 to 14 ms; what products call is in every process, 8 ms) and
not with all that a C++ program gets (28; with products 65). The last command is the compiler's own,
for whatever else there may be.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

__all__ = ["LINKED_AS", "link_commands"]

_ALONE = ("--eh-frame-hdr", "--hash-style=gnu", "--build-id")
_BY_DRIVER = ("-nostdlib",)
_OPENMP, _LIBRARIES = "-lgomp", ("-Wl,--as-needed", "-lm", "-lc", "-lgcc")
_ALL = ("-fopenmp",)

# Of libc, which every process has: the loader finds it, and libc is not read. Of each there is one
# version: a name that no library was searched for gets the oldest.
_LOADED = {b"malloc", b"free", b"__tls_get_addr"}
_OF_THE_LINKER = {b"_GLOBAL_OFFSET_TABLE_"}

LINKED_AS = " ".join(  # for the cache's keys
    (*_ALONE, *_BY_DRIVER, _OPENMP, *_LIBRARIES, *_ALL, *map(bytes.decode, sorted(_LOADED)))
)

_SYMBOL_TABLE = 2  # SHT_SYMTAB
_SECTION = struct.Struct("=IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("=IBBHQQ")  # Elf64_Sym


def link_commands(cxx: str, objects: Mapping[Path, bytes], out: Path) -> Iterator[Sequence[str]]:
    """In the order in which to try them; all but the last fail where a symbol stays undefined."""
    parts, at = [*map(str, objects)], ["-o", str(out)]
    missing = _missing(objects.values())
    if missing is not None:
        called = missing - _LOADED
        libraries = _libraries(called)
        searches_all = set(_LIBRARIES) <= set(libraries)
        left = "defs" if searches_all or called == missing else "undefs"
        if not called and (linker := _linker(cxx)) is not None:
            yield [linker, "-shared", "-z", left, *_ALONE, *parts, *at]
        if libraries or not called:
            yield [cxx, "-shared", *_BY_DRIVER, f"-Wl,-z,{left}", *parts, *libraries, *at]
    yield [cxx, "-shared", *_ALL, *parts, *at]


def _libraries(called: Set[bytes]) -> Sequence[str]:
    """Empty where nothing is called, and where all are needed, as for the C++ runtime, or the
    OpenMP runtime is not GCC's: two in one process must not be.
    """
    if any(name.startswith((b"_Z", b"__cxa_", b"__dso_")) for name in called):
        return ()
    parallel = {name for name in called if name.startswith((b"GOMP_", b"omp_", b"__kmpc_"))}
    if not parallel:
        return _LIBRARIES if called else ()
    if not any(name.startswith(b"GOMP_") for name in parallel):
        return ()
    return (_OPENMP,) if parallel == called else (_OPENMP, *_LIBRARIES)


def _linker(cxx: str) -> str | None:
    """The one beside the compiler, where there is one: to ask the compiler takes as long as it
    saves.
    """
    path = os.path.join(os.path.dirname(os.path.realpath(cxx)), "ld")
    return path if os.access(path, os.X_OK) else None


def _missing(objects: Iterable[bytes]) -> set[bytes] | None:
    """What none of them defines; None where one cannot be read."""
    undefined: set[bytes] = set()
    defined: set[bytes] = set()
    try:
        for data in objects:
            for name, is_defined in _symbols(data):
                (defined if is_defined else undefined).add(name)
    except (struct.error, ValueError):  # no 64-bit ELF file of this machine's byte order
        return None
    return undefined - defined - _OF_THE_LINKER


def _symbols(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The global symbols of an object, and whether it defines them. <elf.h> has the layout."""
    if data[:5] != b"\x7fELF\x02" or data[5] != (1 if sys.byteorder == "little" else 2):
        raise ValueError
    (table,) = struct.unpack_from("=Q", data, 40)
    size, count = struct.unpack_from("=HH", data, 58)
    sections = [_SECTION.unpack_from(data, table + n * size) for n in range(count)]
    for _, kind, _, _, offset, length, link, first_global, _, entry in sections:
        if kind == _SYMBOL_TABLE:
            names = sections[link][4]
            for at in range(offset + first_global * entry, offset + length, entry):
                name, _, _, section, _, _ = _SYMBOL.unpack_from(data, at)
                begin = names + name
                yield data[begin : data.index(b"\0", begin)], section != 0
