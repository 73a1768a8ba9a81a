"""Yields the commands that link objects to a shared library, cheapest first.

In: objects, their paths and bytes. Out: command lines. Undefined symbols show what the objects
need. Most kernels call nothing, so the linker runs directly and reads no library: 2.4 ms of
processor time, against 4.8 through the compiler's driver (g++ 12). Kernels with calls are linked
with just the candidate libraries (6 to 14 ms; what products call is in every process, 8 ms) instead
of everything a C++ program gets (28 ms, with products 65). The last two commands are the compiler's
full ones, for all other cases; objects that are not ELF files have no others. OpenMP's symbols may
stay undefined, because torch has loaded a runtime.

Also finds the objects that setup.py has compiled: the tiles of matrix products take g++ 1.1 s, half
of the first compile of a small model.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path

from ..devices import PROCESSORS, Processor, Target
from ..platforms import instruction_sets, library_flags, loads_elf, machine

__all__ = ["LINKED_AS", "compiled_object", "link_commands", "object_file", "processors_here"]

_ALONE = ("--eh-frame-hdr", "--hash-style=gnu", "--build-id")
_BY_DRIVER = ("-nostdlib",)
_OPENMP, _LIBRARIES = "-lgomp", ("-Wl,--as-needed", "-lm", "-lc", "-lgcc")

# Symbols of libc, which the loader finds in every process, so libc need not be read. Each has a
# single version: a name resolved without a library gets the oldest.
_LOADED = {b"malloc", b"free", b"__tls_get_addr"}
_OF_THE_LINKER = {b"_GLOBAL_OFFSET_TABLE_"}

LINKED_AS = " ".join(  # for the cache's keys
    (*_ALONE, *_BY_DRIVER, _OPENMP, *_LIBRARIES, *map(bytes.decode, sorted(_LOADED)))
)

_SYMBOL_TABLE = 2  # SHT_SYMTAB
_SECTION = struct.Struct("=IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("=IBBHQQ")  # Elf64_Sym


def link_commands(cxx: str, objects: Mapping[Path, bytes], out: Path) -> Iterator[Sequence[str]]:
    """Yield commands in order of preference; all but the last fail on an undefined symbol."""
    parts, at = [*map(str, objects)], ["-o", str(out)]
    whole = [cxx, *library_flags(), *parts]
    missing = _missing(objects.values()) if loads_elf() else None
    if missing is not None:
        called = missing - _LOADED
        libraries = _libraries(called)
        searches_all = set(_LIBRARIES) <= set(libraries)
        left = "defs" if searches_all or called == missing else "undefs"
        if not called and (linker := _linker(cxx)) is not None:
            yield [linker, "-shared", "-z", left, *_ALONE, *parts, *at]
        if libraries or not called:
            yield [cxx, "-shared", *_BY_DRIVER, f"-Wl,-z,{left}", *parts, *libraries, *at]
    if loads_elf():
        yield [*whole, _OPENMP, *at]  # fails where only clang is installed
    yield [*whole, *at]


def _libraries(called: Set[bytes]) -> Sequence[str]:
    """Return the libraries for the symbols; () if nothing is called or the full command is needed.
    That is so for the C++ runtime, and for OpenMP entry points other than GCC's.
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
    """Return the linker next to the compiler, if any. Asking the compiler would take as long as the
    direct call saves.
    """
    for path in (os.path.realpath(cxx), cxx):  # clang's own folder has none
        folder, name = os.path.split(path)
        # A cross compiler's name begins like that of its linker: aarch64-linux-gnu-g++-12.
        prefix = name[: name.rfind("g++")] if "-g++" in name else ""
        for linker in (f"{prefix}ld", "ld"):
            if os.access(os.path.join(folder, linker), os.X_OK):
                return os.path.join(folder, linker)
    return None


def _missing(objects: Iterable[bytes]) -> set[bytes] | None:
    """Return the symbols that no object defines, or None if one cannot be read."""
    undefined: set[bytes] = set()
    defined: set[bytes] = set()
    try:
        for data in objects:
            for name, is_defined in _symbols(data):
                (defined if is_defined else undefined).add(name)
    except (struct.error, ValueError):  # not a 64-bit ELF file of this machine's byte order
        return None
    return undefined - defined - _OF_THE_LINKER


def _symbols(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the global symbols of an object and whether it defines them. See <elf.h>."""
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


# ------------------------------------------------------ objects that were compiled at installation

_OBJECTS = Path(__file__).with_name("objects")


def processors_here() -> list[Processor]:
    """Return the processors of this machine's architecture."""
    return [row for row in PROCESSORS.values() if row.machine == machine()]


def object_file(source: str, key: str, processor: Processor, folder: Path = _OBJECTS) -> Path:
    """Return the path of an object; `key` is the hash of its sources and flags."""
    return folder / f"{Path(source).stem}-{processor.name}-{key[:16]}.o"


def compiled_object(source: str, key: str, target: Target) -> bytes | None:
    """Return the bytes of an object that was compiled for the target's registers, if there is one.

    Its instructions are those of a level of the ABI, which a machine of those registers may lack.
    """
    processor = PROCESSORS.get(target.processor) if target.processor else _level(target.isa)
    if processor is None:
        return None
    try:
        return object_file(source, key, processor).read_bytes()
    except OSError:
        return None


@lru_cache(maxsize=4)
def _level(isa: str) -> Processor | None:
    here = set(instruction_sets())
    fitting = (row for row in processors_here() if row.isa == isa)
    return next((row for row in fitting if here.issuperset(row.instructions)), None)
