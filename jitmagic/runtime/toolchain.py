"""The C++ toolchain: generated text in, a loaded shared library out.

A library is cached under the hash of the text, the headers, the flags, the compiler's identity and
the machine's instruction set, so a second process loads what the first one built. What was cached
and cannot be loaded is built anew; what is built is cached once it was loaded and has its symbols.
A text with matrix products is linked with what multiplies, an object that is cached likewise.
A refused text, and a compiler that hangs, raise ToolchainError with the compiler's own words;
Ctrl-C stops the compiler with all its children and leaves the cache clean.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ..errors import ToolchainError
from ..target import Target, distrust_compiler
from . import precompiled
from .compilers import run
from .image import ImageError, load_image
from .linking import LINKED_AS, link_commands
from .store import Store, content_key, temporary_folder

__all__ = [
    "SECONDS",
    "Library",
    "build_command",
    "build_library",
    "build_object",
    "flags",
    "header_folder",
    "is_built",
    "linked_with",
    "missing_objects",
]

_FLAGS = (
    "-std=c++17",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fno-exceptions",  # 4 ms of 108: nothing throws, and no cleanup need be thought of
    "-fPIC",
    "-w",
)
_LONG = 20_000  # characters; a unit of several kernels has about 10 000 (codegen/cpp.py)
_PRODUCTS = re.compile(r"^#include <jitmagic/(?:gemm|chain)\.h>$", re.MULTILINE)
SECONDS = 600.0  # of one compiler: a hundred times what the largest kernels take
_ROOM = 1 << 20  # bytes that a library may well take

Slots = AbstractContextManager[Any, Any]  # entered by as many threads at once as compilers may run
_UNLIMITED: Slots = contextlib.nullcontext()


def flags(text: str) -> tuple[str, ...]:
    """How a source is compiled. Of the longest functions (unrolled loops) -O3 walks the stores
    again and again: 16 steps of an RWKV take it 2.5 times as long as -O2, for code 2% faster.
    """
    return ("-O2" if len(text) > _LONG else "-O3", *_FLAGS)


def build_command(
    cxx: str,
    text: str,
    headers: str,
    sources: Sequence[str],
    out: str,
    output: Sequence[str] = ("-shared",),
) -> list[str]:
    """What makes a library of a source, which `text` is, and of what it is linked with."""
    return [cxx, *flags(text), *output, _march(), f"-I{headers}", *sources, "-o", out]


_FIRST_HEADER = "#include <jitmagic/loop.h>\n"


def _precompiled_header(text: str, cxx: str, store: Store) -> precompiled.Header | None:
    """Of what the text begins with; None where it has no such header, or other flags."""
    if not text.startswith(_FIRST_HEADER) or len(text) > _LONG:
        return None
    headers = header_folder()
    source = str(headers / "jitmagic" / "loop.h")
    command = build_command(cxx, "", str(headers), [source], "", ("-x", "c++-header"))[:-1]
    key = content_key(_headers_key(), *command, _compiler_key(cxx), _machine_key())
    return precompiled.Header(store, key, tuple(command))


def linked_with(text: str) -> tuple[str, ...]:
    """The sources beside the headers that a text needs: the tiles of matrix products, whose compile
    takes longer than that of most texts and is the same for all.
    """
    return ("jitmagic/products.cpp",) if _PRODUCTS.search(text) else ()


class Library:
    """A loaded shared object; kernels live as long as it does. Raises ImageError."""

    def __init__(
        self, data: bytes, key: str, symbols: Iterable[str], cached: bool, folder: Path
    ) -> None:
        self.cached = cached
        self._image = load_image(data, key[:16], (folder,))
        for symbol in symbols:
            self._image.address(symbol)

    def address(self, symbol: str) -> int:
        """The entry point of a kernel as an integer."""
        return self._image.address(symbol)


@lru_cache(maxsize=1)
def header_folder() -> Path:
    """Where `#include <jitmagic/vec.h>` is found: package data, in a checkout as when installed."""
    return Path(__file__).resolve().parent.parent / "include"


@lru_cache(maxsize=1)
def _headers_key() -> str:
    """Of what a text may include or be linked with."""
    files = sorted(file for file in header_folder().rglob("*") if file.is_file())
    return content_key(*(file.read_bytes() for file in files))


def _compiler_key(cxx: str) -> str:
    """Which compiler this is, without running it. ToolchainError when it is not there."""
    if not cxx:
        hint = "none was found: install g++ or clang++, or set JITMAGIC_CXX to the path of one"
        raise ToolchainError("the C++ compiler", "", hint)
    try:
        real = os.path.realpath(cxx)
        facts = os.stat(real)
    except OSError as error:
        raise ToolchainError(cxx, "", str(error)) from error
    return f"{real} {facts.st_size} {facts.st_mtime_ns}"


@lru_cache(maxsize=1)
def _machine_key() -> str:
    """-march=native means another thing on another processor."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = {line for line in file if line.startswith(("flags", "model name", "Features"))}
    except OSError:
        lines = {" ".join(os.uname())}
    return content_key(*sorted(lines))


def _march() -> str:
    return "-mcpu=native" if os.uname().machine in ("aarch64", "arm64") else "-march=native"


def _key(text: str, target: Target) -> str:
    return content_key(
        text,
        _headers_key(),
        " ".join((*flags(text), LINKED_AS)),
        _compiler_key(target.cxx),
        _machine_key(),
        target.isa,
    )


def is_built(text: str, target: Target, store: Store) -> bool:
    """Whether `build_library` would find it in the cache. Raises ToolchainError as that does."""
    return store.get(_key(text, target), ".so") is not None


def build_library(
    text: str,
    target: Target,
    store: Store,
    symbols: Iterable[str] = (),
    seconds: float = SECONDS,
    cancel: threading.Event | None = None,
    slots: Slots = _UNLIMITED,
) -> Library:
    """Compile (or find) the shared object for one translation unit and load it; it has `symbols`.
    `seconds`, `cancel`: when the compiler is stopped, see `run`. `slots` is held while one runs.
    May be called from several threads at once. Raises ToolchainError.
    """
    symbols = tuple(symbols)
    key = _key(text, target)
    if (data := store.get(key, ".so")) is not None:
        with contextlib.suppress(ImageError):  # whole and still of no use: replaced below
            return Library(data, key, symbols, True, store.folder)
    try:
        objects = partial(_objects, text, target, store, seconds, cancel, slots)
        job = _Compile(text, target.cxx, seconds, cancel, objects, slots)
        data, library = _build(job, key, symbols, store)
    except ToolchainError:
        if (cancel is None or not cancel.is_set()) and (why := _broken(target.cxx, store, seconds)):
            distrust_compiler(target.cxx, why)
        raise
    store.put(key, ".so", data)
    return library


@dataclass(frozen=True, slots=True)
class _Compile:
    """A text, and the objects it becomes a library with, which are asked for once it is compiled:
    somebody else may be compiling them. None: it is to be an object itself.
    """

    text: str
    cxx: str
    seconds: float
    cancel: threading.Event | None
    objects: Callable[[], tuple[bytes, ...]] | None = tuple
    slots: Slots = _UNLIMITED


def _build(job: _Compile, key: str, symbols: Iterable[str], store: Store) -> tuple[bytes, Library]:
    data = _compile(job, store)
    try:
        return data, Library(data, key, symbols, False, store.folder)
    except ImageError as error:
        raise ToolchainError(job.cxx, "load what it built", str(error)) from error


_object_lock = threading.Lock()  # several units ask for it at once: it is compiled for the first


def _objects(
    text: str,
    target: Target,
    store: Store,
    seconds: float,
    cancel: threading.Event | None,
    slots: Slots,
) -> tuple[bytes, ...]:
    """What the text is linked with, compiled once per store."""
    names = linked_with(text)
    return tuple(build_object(name, target, store, seconds, cancel, slots) for name in names)


def missing_objects(texts: Iterable[str], target: Target, store: Store) -> tuple[str, ...]:
    """What `build_object` has to make before the texts can be linked. Raises ToolchainError."""
    needed: dict[str, list[str]] = {}
    for text in texts:
        for name in linked_with(text):
            needed.setdefault(name, []).append(text)
    return tuple(
        name
        for name, users in needed.items()
        if store.get(_key(_source(name), target), ".o") is None
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
    """Compile (or find) a source beside the headers. Arguments and errors as `build_library`."""
    source = _source(name)
    key = _key(source, target)
    with _object_lock:
        if (data := store.get(key, ".o")) is None:
            data = _compile(_Compile(source, target.cxx, seconds, cancel, None, slots), store)
            store.put(key, ".o", data)
    return data


def _source(name: str) -> str:
    return (header_folder() / name).read_text(encoding="utf-8")


_PROBE = 'extern "C" int probe(void* const*) { return 0; }'
_PROBE_SECONDS = (2.0, 10.0)  # at least, at most


def _broken(cxx: str, store: Store, seconds: float) -> str:
    """Why the compiler cannot build even an empty function; empty when it can, and the text that it
    refused is at fault.
    """
    least, most = _PROBE_SECONDS
    try:
        job = _Compile(_PROBE, cxx, min(max(seconds, least), most), None)
        _build(job, "probe", ("probe",), store)
    except ToolchainError as error:
        return error.output.strip().partition("\n")[0]
    return ""


def _compile(job: _Compile, store: Store) -> bytes:
    """In the store's folder, or elsewhere where it is read-only, full or removed meanwhile."""
    header = _precompiled_header(job.text, job.cxx, store)
    try:
        with store.scratch() as folder:
            return _compile_in(folder, job, header)
    except OSError:
        pass
    try:
        with temporary_folder() as folder:
            return _compile_in(folder, job)
    except OSError as error:
        raise ToolchainError(job.cxx, "write its files", str(error)) from error


def _compile_in(folder: Path, job: _Compile, header: precompiled.Header | None = None) -> bytes:
    """The bytes of what it makes; OSError where the folder is at fault."""
    source, compiled, out = (folder / f"kernels.{suffix}" for suffix in ("cpp", "o", "so"))
    source.write_text(job.text, encoding="utf-8")
    _compile_object(source, compiled, job, header)
    if job.objects is None:
        return compiled.read_bytes()
    objects = {compiled: compiled.read_bytes()}
    for number, data in enumerate(job.objects()):
        objects[folder / f"{number}.o"] = data
        (folder / f"{number}.o").write_bytes(data)
    for command in link_commands(job.cxx, objects, out):
        if not (why := _failure(command, out, job)):
            return out.read_bytes()
    raise _refusal(command, why, folder)


def _compile_object(
    source: Path, out: Path, job: _Compile, header: precompiled.Header | None
) -> None:
    command = build_command(
        job.cxx, job.text, str(header_folder()), [str(source)], str(out), ("-c",)
    )
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
    """Why the command did not make `out`; empty when it did."""
    with job.slots:
        done = run(command, job.seconds, job.cancel)
    made = done.code == 0 and out.is_file()
    return "" if made else done.words or f"exit code {done.code}"


def _refusal(command: Sequence[str], why: str, folder: Path) -> ToolchainError:
    """The error of a command that failed; OSError where the folder is at fault."""
    (folder / "room").write_bytes(bytes(_ROOM))  # raises where the disk is full or the folder gone
    return ToolchainError(command[0], " ".join(command), why)
