"""The C++ toolchain: generated text in, a loaded shared library out.

A library is cached under the hash of the text, the headers, the flags, the compiler's identity and
the machine's instruction set, so a second process links what the first one built. A refused text
raises ToolchainError with the compiler's own words; Ctrl-C stops the compiler and leaves the cache
clean.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import lru_cache
from pathlib import Path

from ..errors import ToolchainError
from ..target import Target
from .store import Store, content_key

__all__ = ["Library", "build_library", "flags", "header_folder"]

_FLAGS = (
    "-std=c++17",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-shared",
    "-fPIC",
    "-w",
)
_LONG = 60_000  # characters; GPT's backward has 47 000


def flags(text: str) -> tuple[str, ...]:
    """How a source is compiled. Of the longest functions (unrolled loops) -O3 walks the stores
    again and again: 16 steps of an RWKV take it 2.5 times as long as -O2, for code 2% faster.
    """
    return ("-O2" if len(text) > _LONG else "-O3", *_FLAGS)


class Library:
    """A loaded shared object; kernels live as long as it does."""

    def __init__(self, path: Path, cached: bool) -> None:
        self.path = path
        self.cached = cached
        self._handle = ctypes.CDLL(str(path))

    def address(self, symbol: str) -> int:
        """The entry point of a kernel as an integer."""
        value = ctypes.cast(getattr(self._handle, symbol), ctypes.c_void_p).value
        assert value is not None
        return value


@lru_cache(maxsize=1)
def header_folder() -> Path:
    """Where `#include <jitmagic/vec.h>` is found: in an installed package, or in the checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "kernel_headers"
    return installed if installed.is_dir() else package.parent / "extensions" / "kernel"


@lru_cache(maxsize=1)
def _headers_key() -> str:
    files = sorted(header_folder().rglob("*.h"))
    return content_key(*(file.read_bytes() for file in files))


@lru_cache(maxsize=4)
def _compiler_key(cxx: str) -> str:
    """Which compiler this is, without running it."""
    real = os.path.realpath(cxx)
    facts = os.stat(real)
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


def build_library(text: str, target: Target, store: Store) -> Library:
    """Compile (or find) the shared object for one translation unit and load it."""
    key = content_key(
        text,
        _headers_key(),
        " ".join(flags(text)),
        _compiler_key(target.cxx),
        _machine_key(),
        target.isa,
    )
    if (found := store.get(key, ".so")) is not None:
        return Library(found, cached=True)
    return Library(store.put(key, ".so", lambda out: _compile(text, target.cxx, out)), cached=False)


def _compile(text: str, cxx: str, out: Path) -> None:
    source = out.with_suffix(".cpp")
    source.write_text(text)
    command = [cxx, *flags(text), _march(), f"-I{header_folder()}", str(source), "-o", str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(cxx, " ".join(command), str(error)) from error
    if done.returncode != 0 or not out.exists():
        raise ToolchainError(cxx, " ".join(command), done.stderr or f"exit code {done.returncode}")
