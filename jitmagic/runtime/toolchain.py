"""Runs the C++ toolchain: compiles generated text to a shared library and loads it.

A library is cached under the hash of the text, the headers, the flags, the compiler's identity and
the machine's instruction set, so that a second process reuses it. A cached library that cannot be
loaded is rebuilt; a new one is cached only after it has been loaded and all its symbols were found.
A text with matrix products is linked with a separately compiled object, cached likewise. A compiler
error or timeout raises ToolchainError with the compiler's output; Ctrl-C kills the compiler with
its children and leaves the cache clean.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from .. import platforms
from ..devices import PROCESSORS, Target
from ..devices.cpu import distrust_compiler
from ..errors import ToolchainError
from ..lazy_dataclass import dataclass
from ..options import Options
from . import precompiled
from .compilers import run
from .linking import LINKED_AS, compiled_object, link_commands, object_file, processors_here
from .memory_loading import Image, ImageError, load_image
from .shared_builds import built_once
from .store import Store, content_key, temporary_folder

__all__ = [
    "Library",
    "build_command",
    "build_library",
    "build_object",
    "commands_of_installation",
    "flags",
    "header_folder",
    "is_built",
    "library_file",
    "library_image",
    "linked_with",
    "missing_objects",
    "object_key",
    "time_limit",
]

_FLAGS = (
    "-std=c++17",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fno-exceptions",  # saves 4 of 108 ms: nothing throws, so no cleanup code
    "-fPIC",
    "-w",
)
_LONG = 20_000  # characters; a unit of several kernels has about 10 000 (cpp/renderer.py)
_PRODUCTS = re.compile(
    r"^#include <jitmagic/(?:gemm|chain|attention|dequantised)\.h>$", re.MULTILINE
)
_OBJECTS = ("jitmagic/products.cpp",)
_SECONDS = 600.0  # per compiler: a hundred times what the largest kernels take
_ROOM = 1 << 20  # bytes, more than a library takes

Slots = AbstractContextManager[object]  # limits the number of concurrent compilers
_UNLIMITED: Slots = contextlib.nullcontext()


def flags(text: str) -> tuple[str, ...]:
    """Return the flags for a source. On very long functions (unrolled loops) -O3 rescans the stores
    repeatedly: 16 steps of an RWKV take 2.5 times as long as with -O2, for code 2% faster.
    """
    return ("-O2" if len(text) > _LONG else "-O3", *_FLAGS)


def build_command(
    cxx: str,
    text: str,
    headers: str,
    sources: Sequence[str],
    out: str,
    output: Sequence[str] | None = None,
    machine: Sequence[str] | None = None,
) -> list[str]:
    """Return the command that compiles `text` and the sources, by default to a library for this
    machine.
    """
    kind = platforms.library_flags() if output is None else output
    chosen = platforms.native_flags() if machine is None else machine
    return [cxx, *flags(text), *kind, *chosen, f"-I{headers}", *sources, "-o", out]


def _machine_flags(target: Target) -> tuple[str, ...]:
    """Return the flags for the target's instructions."""
    chosen = PROCESSORS.get(target.processor)
    return platforms.native_flags(target.isa) if chosen is None else chosen.flags


_FIRST_HEADER = "#include <jitmagic/loop.h>\n"


def _precompiled_header(text: str, target: Target, store: Store) -> precompiled.Header | None:
    """Return the precompiled header of a text, None if it includes another or has other flags."""
    if not text.startswith(_FIRST_HEADER) or len(text) > _LONG:
        return None
    headers = header_folder()
    source = str(headers / "jitmagic" / "loop.h")
    kind, machine = ("-x", "c++-header"), _machine_flags(target)
    command = build_command(target.cxx, "", str(headers), [source], "", kind, machine)[:-1]
    key = content_key(_headers_key(), *command, _compiler_key(target.cxx), _machine_key(target))
    return precompiled.Header(store, key, tuple(command))


def linked_with(text: str) -> tuple[str, ...]:
    """Return the sources to link with a text: the tiles of matrix products. They take longer to
    compile than most texts and are the same for all.
    """
    # One product: 0.15 s instead of 0.73 s of compile; the object takes 0.85 s, once (linking.py).
    return _OBJECTS if _PRODUCTS.search(text) else ()


class Library:
    """Represents a loaded shared object; its kernels are valid while it lives. `file` is its name
    in the cache. Raises ImageError. `loads`: False for another machine's, which is not loaded.
    """

    def __init__(
        self,
        data: bytes,
        key: str,
        symbols: Iterable[str],
        cached: bool,
        folder: Path,
        loads: bool = True,
    ) -> None:
        self.cached = cached
        self.file = f"{key}.so"
        self._image: Image | _NotLoaded
        self._image = load_image(data, key[:16], (folder,)) if loads else _NotLoaded()
        for symbol in symbols:
            self._image.address(symbol)

    def address(self, symbol: str) -> int:
        """Return the entry point of a kernel as an integer."""
        return self._image.address(symbol)


class _NotLoaded:
    """Stands in for the image of a library of another machine, which is only written to a file."""

    def address(self, symbol: str) -> int:
        """Return the entry point of a function that fails."""
        return ctypes.cast(_failing(), ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def _failing() -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda arguments: 1)


@lru_cache(maxsize=1)
def header_folder() -> Path:
    """Return the folder of `jitmagic/vec.h`: package data, installed or in a checkout."""
    return Path(__file__).resolve().parent.parent / "include"


@lru_cache(maxsize=1)
def _headers_key() -> str:
    """Return the hash of all files that a text may include or be linked with."""
    files = sorted(file for file in header_folder().rglob("*") if file.is_file())
    return content_key(*(file.read_bytes() for file in files))


def _compiler_key(cxx: str) -> str:
    """Identify the compiler without running it. Raises ToolchainError if it is missing."""
    if not cxx:
        hint = "none was found: install g++ or clang++, or set JITMAGIC_CXX to the path of one"
        raise ToolchainError("the C++ compiler", "", hint)
    try:
        real = os.path.realpath(cxx)
        facts = os.stat(real)
    except OSError as error:
        raise ToolchainError(cxx, "", str(error)) from error
    return f"{real} {facts.st_size} {facts.st_mtime_ns}"


def _machine_key(target: Target) -> str:
    """Return what the instructions depend on: with -march=native, the features of this machine."""
    machine = () if target.processor else (_native_key(),)
    return " ".join((*_machine_flags(target), *machine))


@lru_cache(maxsize=1)
def _native_key() -> str:
    return content_key(*platforms.processor_features())


def _key(text: str, target: Target) -> str:
    return content_key(
        text,
        _headers_key(),
        " ".join((*flags(text), LINKED_AS)),
        _compiler_key(target.cxx),
        _machine_key(target),
        target.isa,
    )


def library_image(text: str, target: Target, store: Store) -> bytes | None:
    """Return the shared object of a text from the cache. Raises ToolchainError as `is_built`."""
    return store.get(_key(text, target), ".so")


def library_file(text: str, target: Target) -> str:
    """Return the name of a text's library in the cache. Raises ToolchainError as `is_built`."""
    return f"{_key(text, target)}.so"


def is_built(text: str, target: Target, store: Store) -> bool:
    """Return whether `build_library` would find it cached. Raises ToolchainError as that does."""
    return store.get(_key(text, target), ".so") is not None


def time_limit(options: Options) -> float:
    """Return the seconds that a compiler may take if no call waits for it."""
    return options.compile_seconds or _SECONDS


def build_library(
    text: str,
    target: Target,
    store: Store,
    symbols: Iterable[str] = (),
    seconds: float = _SECONDS,
    cancel: threading.Event | None = None,
    slots: Slots = _UNLIMITED,
) -> Library:
    """Compile (or find) the shared object for one translation unit, with `symbols`, and load it.
    `seconds` and `cancel` stop the compiler, see `run`; `slots` is held while one runs.
    Thread-safe. Raises ToolchainError.
    """
    symbols = tuple(symbols)
    key, loads = _key(text, target), not target.processor
    if (data := store.get(key, ".so")) is not None:
        with contextlib.suppress(ImageError):  # intact but not loadable: replaced below
            return Library(data, key, symbols, True, store.folder, loads)
    objects = partial(_objects, text, target, store, seconds, cancel, slots)
    job = _Compile(text, target, seconds, cancel, objects, slots)
    built: list[Library] = []

    def build() -> bytes:
        data, library = _build(job, key, symbols, store)
        built.append(library)
        return data

    try:
        data = built_once(store, key, ".so", build, cancel)
        if not built:
            with contextlib.suppress(ImageError):
                return Library(data, key, symbols, True, store.folder, loads)
            store.put(key, ".so", build())
    except ToolchainError:
        if (cancel is None or not cancel.is_set()) and (why := _broken(target, store, seconds)):
            distrust_compiler(target.cxx, why)
        raise
    return built[0]


@dataclass(frozen=True, slots=True)
class _Compile:
    """Describes a text to compile, and a function that returns the objects to link with it (None:
    compile to an object). The function is called after the text has been compiled, because another
    thread may be compiling those objects meanwhile.
    """

    text: str
    target: Target
    seconds: float
    cancel: threading.Event | None
    objects: Callable[[], tuple[bytes, ...]] | None = tuple
    slots: Slots = _UNLIMITED


def _build(job: _Compile, key: str, symbols: Iterable[str], store: Store) -> tuple[bytes, Library]:
    data = _compile(job, store)
    try:
        loads = not job.target.processor
        return data, Library(data, key, symbols, False, store.folder, loads)
    except ImageError as error:
        raise ToolchainError(job.target.cxx, "load what it built", str(error)) from error


def _objects(
    text: str,
    target: Target,
    store: Store,
    seconds: float,
    cancel: threading.Event | None,
    slots: Slots,
) -> tuple[bytes, ...]:
    """Return the objects that the text is linked with, compiled once per store."""
    names = linked_with(text)
    return tuple(build_object(name, target, store, seconds, cancel, slots) for name in names)


def missing_objects(texts: Iterable[str], target: Target, store: Store) -> tuple[str, ...]:
    """Return the objects to build before the texts can be linked. Raises ToolchainError."""
    needed: dict[str, list[str]] = {}
    for text in texts:
        for name in linked_with(text):
            needed.setdefault(name, []).append(text)
    return tuple(
        name
        for name, users in needed.items()
        if _found_object(name, _key(_source(name), target), target, store) is None
        and not all(is_built(text, target, store) for text in users)
    )


def build_object(
    name: str,
    target: Target,
    store: Store,
    seconds: float,
    cancel: threading.Event | None,
    slots: Slots = _UNLIMITED,
) -> bytes:
    """Compile (or find) a source next to the headers. Arguments and errors as `build_library`."""
    source = _source(name)
    key = _key(source, target)
    if (data := _found_object(name, key, target, store)) is not None:
        return data
    job = _Compile(source, target, seconds, cancel, None, slots)
    return built_once(store, key, ".o", partial(_compile, job, store), cancel)


def _found_object(name: str, key: str, target: Target, store: Store) -> bytes | None:
    """Return an object that was compiled with jitmagic or is in the cache."""
    found = compiled_object(name, object_key(name), target)
    return store.get(key, ".o") if found is None else found


@lru_cache(maxsize=4)
def object_key(name: str) -> str:
    """Return the hash of the sources and flags of an object, without those of a processor."""
    return content_key(_headers_key(), *flags(_source(name)))


def commands_of_installation(cxx: str, folder: Path) -> dict[Path, list[str]]:
    """Return the objects that an installation compiles to `folder`, each with its command."""
    headers, output = header_folder(), ("-c",)
    found = {}
    for name, row in product(_OBJECTS, processors_here()):
        file, source = object_file(name, object_key(name), row, folder), _source(name)
        paths = str(headers), [str(headers / name)], str(file)
        found[file] = build_command(cxx, source, *paths, output, row.flags)
    return found


def _source(name: str) -> str:
    return (header_folder() / name).read_text(encoding="utf-8")


_PROBE = 'extern "C" int probe(void* const*) { return 0; }'
_PROBE_SECONDS = (2.0, 10.0)  # at least, at most


def _broken(target: Target, store: Store, seconds: float) -> str:
    """Return why the compiler cannot build even an empty function; "" if it can, so that the text
    must be at fault.
    """
    least, most = _PROBE_SECONDS
    try:
        job = _Compile(_PROBE, target, min(max(seconds, least), most), None)
        _build(job, "probe", ("probe",), store)
    except ToolchainError as error:
        return error.output.strip().partition("\n")[0]
    return ""


def _compile(job: _Compile, store: Store) -> bytes:
    """Compile in the store's folder, or elsewhere if it is read-only, full or removed."""
    header = _precompiled_header(job.text, job.target, store)
    try:
        with store.scratch() as folder:
            return _compile_in(folder, job, header)
    except OSError:
        pass
    try:
        with temporary_folder() as folder:
            return _compile_in(folder, job)
    except OSError as error:
        raise ToolchainError(job.target.cxx, "write its files", str(error)) from error


def _compile_in(folder: Path, job: _Compile, header: precompiled.Header | None = None) -> bytes:
    """Return the library's or object's bytes; OSError means that the folder is at fault."""
    source, compiled, out = (folder / f"kernels.{suffix}" for suffix in ("cpp", "o", "so"))
    source.write_text(job.text, encoding="utf-8")
    _compile_object(source, compiled, job, header)
    if job.objects is None:
        return compiled.read_bytes()
    objects = {compiled: compiled.read_bytes()}
    for number, data in enumerate(job.objects()):
        objects[folder / f"{number}.o"] = data
        (folder / f"{number}.o").write_bytes(data)
    for command in link_commands(job.target.cxx, objects, out):
        if not (why := _failure(command, out, job)):
            return out.read_bytes()
    raise _refusal(command, why, folder)


def _compile_object(
    source: Path, out: Path, job: _Compile, header: precompiled.Header | None
) -> None:
    headers, machine = str(header_folder()), _machine_flags(job.target)
    given = job.target.cxx, job.text, headers, [str(source)], str(out)
    command = build_command(*given, output=("-c",), machine=machine)
    precompiled_at = header.find() if header is not None else None
    why = ""
    if precompiled_at is not None:
        why = _failure([*command, "-include", str(precompiled_at)], out, job)
        if not why:
            return
    if words := _failure(command, out, job):
        raise _refusal(command, words, source.parent)
    if header is not None:
        header.refuse(why) if why else header.missed()


def _failure(command: Sequence[str], out: Path, job: _Compile) -> str:
    """Return why the command did not make `out`, or an empty string."""
    with job.slots:
        done = run(command, job.seconds, job.cancel)
    made = done.code == 0 and out.is_file()
    return "" if made else done.stderr or f"exit code {done.code}"


def _refusal(command: Sequence[str], why: str, folder: Path) -> ToolchainError:
    """Return the error of a failed command; raises OSError if the folder is at fault."""
    (folder / "room").write_bytes(bytes(_ROOM))  # raises if the disk is full or the folder is gone
    return ToolchainError(command[0], " ".join(command), why)
