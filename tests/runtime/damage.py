"""Kinds of damage to the kernel cache and to the toolchain, for test_damage.py.

A Kind harms what `Place` names, a cache folder that holds good kernels of one function, and says
which tier has to run that function then. What it does to this process is undone by `Place.undo`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jitmagic.devices import cpu
from jitmagic.options import make_options
from jitmagic.runtime import numba_kernels
from jitmagic.runtime.store import Store


@dataclass
class Place:
    """The environment to damage. `options` are the user's; `patch` and `undo` change this process
    for one call. `mended` says that folders are repaired, so that the next process must be healthy.
    """

    cache: Path
    patch: pytest.MonkeyPatch
    undo: ExitStack
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kernels(self) -> Path:
        return self.cache / "kernels"

    @property
    def library(self) -> Path:
        (found,) = self.kernels.glob("*.so")
        return found

    @property
    def body(self) -> bytes:
        """The library without its checksum."""
        data = Store(self.kernels).get(self.library.stem, ".so")
        assert data is not None
        return data

    def reseal(self, data: bytes) -> None:
        """Other contents with a matching checksum."""
        Store(self.kernels).put(self.library.stem, ".so", data)


@dataclass(frozen=True)
class Kind:
    """`says`: what a warning has to say; empty: there is none. `stays`: the harm is the user's to
    mend, so the next process meets it too.
    """

    harm: Callable[[Place], None]
    tier: str = "cpp"
    says: str = ""
    stays: bool = False


KINDS: dict[str, Kind] = {}


def kind(tier: str = "cpp", says: str = "", stays: bool = False) -> Callable[[Any], Any]:
    def register(harm: Callable[[Place], None]) -> Callable[[Place], None]:
        KINDS[harm.__name__] = Kind(harm, tier, says, stays)
        return harm

    return register


# -- the file of a kernel -------------------------------------------------------------------------


def _edits(name: str, edit: Callable[[bytes], bytes]) -> None:
    def harm(place: Place) -> None:
        place.library.write_bytes(edit(place.library.read_bytes()))

    KINDS[name] = Kind(harm)


def _reseals(name: str, edit: Callable[[bytes], bytes]) -> None:
    """The checksum is right: only the loader can tell."""
    KINDS[name] = Kind(lambda place: place.reseal(edit(place.body)))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


_edits("empty", lambda data: b"")
_edits("cut_in_half", lambda data: data[: len(data) // 2])
_edits("one_byte_short", lambda data: data[:-1])
_edits("longer", lambda data: data + b"\0")
_edits("a_bit_of_the_code", lambda data: _flipped(data, len(data) // 2))
_edits("a_bit_of_the_checksum", lambda data: _flipped(data, len(data) - 9))
_edits("no_checksum", lambda data: data[:-82])
_edits("zeros", lambda data: bytes(len(data)))
_edits("text_that_is_no_utf8", lambda data: "café".encode("latin-1"))

_reseals("sealed_empty", lambda body: b"")
_reseals("sealed_text", lambda body: b"#!/bin/sh\n")
_reseals("sealed_header_only", lambda body: body[:40])
_reseals("sealed_half", lambda body: body[: len(body) // 2])
_reseals("sealed_without_its_data", lambda body: body[:5000])
_reseals("sealed_32_bits", lambda body: body[:4] + b"\x01" + body[5:])
_reseals("sealed_other_machine", lambda body: body[:18] + b"\xf3\0" + body[20:])
_reseals("sealed_no_library", lambda body: body[:16] + b"\x01\0" + body[18:])


def _library_of(text: str, *flags: str) -> bytes:
    cxx = cpu._find_cxx(None)[0]
    command = [cxx, "-shared", "-fPIC", *flags, "-x", "c++", "-", "-o", "/dev/stdout"]
    return subprocess.run(["sh", "-c", f"{' '.join(command)} | cat"], input=text.encode(),
                          capture_output=True, check=True).stdout  # fmt: skip


@kind()
def sealed_without_the_kernel(place: Place) -> None:
    place.reseal(_library_of("int other() { return 0; }"))


@kind()
def sealed_with_an_unresolved_symbol(place: Place) -> None:
    place.reseal(_library_of("int gone(); int other() { return gone(); }"))


@kind()
def a_folder_in_its_place(place: Place) -> None:
    path = place.library
    path.unlink()
    (path / "more").mkdir(parents=True)


@kind()
def a_dangling_link(place: Place) -> None:
    path = place.library
    path.unlink()
    path.symlink_to("nowhere")


@kind()
def a_link_to_a_good_copy(place: Place) -> None:
    path = place.library
    path.rename(place.cache / "copy")
    path.symlink_to(place.cache / "copy")


@kind()
def a_pipe(place: Place) -> None:
    path = place.library
    path.unlink()
    os.mkfifo(path)


@kind()
def writable_by_others(place: Place) -> None:
    place.library.chmod(0o666)


@kind()
def of_another_user(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(place.library, 12345, 12345)


@kind()
def unreadable(place: Place) -> None:
    place.library.chmod(0)


@kind()
def another_kernels_file(place: Place) -> None:
    path = place.library
    body = place.body
    path.unlink()
    other = Store(place.kernels).put("other", ".so", body)
    assert other is not None
    other.rename(path)


# -- the folders ----------------------------------------------------------------------------------


@kind()
def nothing_there(place: Place) -> None:
    shutil.rmtree(place.cache)


@kind()
def an_older_versions_files(place: Place) -> None:
    path = place.library
    path.write_bytes(place.body)
    path.with_suffix(".so.sha256").write_bytes(b"\xff\xfe")
    path.with_suffix(".tuned.sha256").mkdir()


@kind()
def a_build_that_was_killed(place: Place) -> None:
    place.library.unlink()
    (place.kernels / "build-x").mkdir()
    (place.kernels / "build-x" / "lock").touch()
    (place.kernels / "build-x" / "kernels.so").write_bytes(b"half")
    (place.kernels / "build-file").write_bytes(b"")
    os.utime(place.kernels / "build-file", (0, 0))


@kind(says="others may write", stays=True)
def a_folder_for_everybody(place: Place) -> None:
    place.kernels.chmod(0o777)


@kind(says="others may write", stays=True)
def a_folder_above_for_everybody(place: Place) -> None:
    place.cache.chmod(0o777)


@kind(says="is not a folder", stays=True)
def a_file_in_the_folders_place(place: Place) -> None:
    shutil.rmtree(place.kernels)
    place.kernels.write_bytes(b"")


def _mount(place: Place, flags: str) -> None:
    """Another file system on the folder, with its files."""
    copy = place.cache.with_name("copy")
    shutil.copytree(place.kernels, copy)
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{flags}", "jitmagic", str(place.kernels)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount, and not everywhere")
    place.undo.callback(subprocess.run, ["umount", "-l", str(place.kernels)], check=True)
    for path in copy.iterdir():
        shutil.copy2(path, place.kernels)


def _read_only(place: Place) -> None:
    command = ["mount", "-o", "remount,ro", str(place.kernels)]
    subprocess.run(command, capture_output=True, check=True)


@kind()
def mounted_noexec(place: Place) -> None:
    _mount(place, "noexec")


@kind()
def mounted_noexec_and_empty(place: Place) -> None:
    place.library.unlink()
    _mount(place, "noexec")


@kind()
def read_only_with_kernels(place: Place) -> None:
    _mount(place, "size=4m")
    _read_only(place)


@kind(says="Read-only file system")
def read_only_and_empty(place: Place) -> None:
    place.library.unlink()
    _mount(place, "size=4m")
    _read_only(place)


@kind(says="No space left on device")
def a_full_disk(place: Place) -> None:
    place.library.unlink()
    _mount(place, "size=8k")


@kind(says="No space left on device")
def a_disk_without_room_for_a_folder(place: Place) -> None:
    for path in place.kernels.iterdir():
        path.unlink()
    _mount(place, "nr_inodes=1")


@kind()
def no_memory_files(place: Place) -> None:
    """The kernel is loaded from a file then."""

    def refused(*args: object) -> int:
        raise PermissionError("memfd_create")

    place.patch.setattr(os, "memfd_create", refused)


# -- the compiler ---------------------------------------------------------------------------------


def compiler(place: Place, script: str, name: str = "cxx") -> str:
    """A compiler that is a shell script; it knows `$out`, and the real one as `$cxx`."""
    path = place.cache.with_name(name)
    lines = ("#!/bin/sh", "for out; do :; done", f"cxx={cpu._find_cxx(None)[0]}", script)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    place.options["cxx"] = str(path)
    return str(path)


def _compilers(name: str, script: str, says: str, tier: str = "blocks", **options: Any) -> None:
    def harm(place: Place) -> None:
        compiler(place, script)
        place.options.update(options)

    KINDS[name] = Kind(harm, tier, says)


_compilers("compiler_fails", "exit 3", "exit code 3")
_compilers("compiler_is_killed", "kill -9 $$", "exit code -9")
_compilers("compiler_words_are_no_utf8", r"printf 'caf\351\377\n' >&2; exit 1", "caf")
_compilers("compiler_says_much", "yes error | head -c 3000000 >&2; exit 1", "error")
_compilers("compiler_writes_nothing", "exit 0", "exit code 0")
_compilers("compiler_writes_an_empty_file", ": > $out", "ELF")
_compilers("compiler_writes_text", "echo hello > $out", "ELF")
_compilers("compiler_writes_half", '"$cxx" "$@"; truncate -s 6000 $out', "last segment")
_compilers("compiler_makes_an_object", '"$cxx" -c "$@"; [ -e $out ] || cp ${out%so}o $out',
           "load what it built")  # fmt: skip
_compilers("compiler_drops_symbols", '"$cxx" "$@"; strip -s $out; echo | "$cxx" -shared -x c++ - '
           "-o $out", "undefined symbol")  # fmt: skip
_compilers("compiler_leaves_symbols_open", "echo 'int gone(); int other() { return gone(); }' | "
           '"$cxx" -shared -fPIC -x c++ - -o $out', "undefined symbol")  # fmt: skip
_LATE = r"(?s)chain runs as eager .* given up: it took longer than 1 seconds \(forward: load" + (
    ".*hint:.*compile_seconds"
)
# The compiler takes all the time that the user allows: none is left for others.
_compilers("compiler_hangs", "sleep 300 & wait", _LATE, "eager", compile_seconds=1.0)
_compilers("compiler_ignores_signals", "trap '' TERM INT; while :; do sleep 1; done", _LATE,
           "eager", compile_seconds=1.0)  # fmt: skip
_compilers("compiler_warns", 'echo "warning: old" >&2; exec "$cxx" "$@"', "", "cpp")
_compilers("compiler_asks_a_question", 'read answer; exec "$cxx" "$@"', "", "cpp")


@kind("blocks", "no C\\+\\+ compiler was found")
def no_compiler(place: Place) -> None:
    place.options["cxx"] = ""


@kind("blocks", "no C\\+\\+ compiler was found")
def a_compiler_that_is_nowhere(place: Place) -> None:
    place.options["cxx"] = "/nonexistent/g++"


@kind("blocks", "no C\\+\\+ compiler was found")
def a_compiler_that_cannot_be_executed(place: Place) -> None:
    os.chmod(compiler(place, "exit 0"), 0o644)


@kind("blocks", "No such file")
def a_compiler_that_was_removed(place: Place) -> None:
    path = compiler(place, "exit 0")
    cpu._find_cxx(path)
    os.unlink(path)


@kind("blocks", "Exec format error")
def a_compiler_of_another_machine(place: Place) -> None:
    Path(compiler(place, "exit 0")).write_bytes(b"\x7fELF\x02\x01\x01" + bytes(57))


@kind("cpp", "exit code 3")
def the_first_of_two_compilers_is_broken(place: Place) -> None:
    real = cpu._find_cxx(None)[0]
    place.library.unlink()
    tools = place.cache.with_name("tools")
    tools.mkdir()
    Path(compiler(place, "exit 3")).rename(tools / "g++")
    (tools / "clang++").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (tools / "clang++").chmod(0o755)
    del place.options["cxx"]
    place.patch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    place.patch.delenv("CXX", raising=False)
    cpu._compilers.cache_clear()
    place.undo.callback(cpu._compilers.cache_clear)


@kind("cpp")
def the_cache_is_removed_by_the_compiler(place: Place) -> None:
    """Remove the cache while a compiler runs."""
    compiler(place, f'rm -rf {place.cache}; exec "$cxx" "$@"')
    place.undo.callback(place.options.pop, "cxx")


def _without_numba(place: Place) -> None:
    place.patch.setitem(sys.modules, "numba", None)  # type: ignore[arg-type]


@kind("blocks", "no C\\+\\+ compiler was found")
def neither_compiler_nor_numba(place: Place) -> None:
    place.options["cxx"] = ""
    _without_numba(place)


@kind("blocks", "exit code 3")
def a_broken_compiler_and_no_numba(place: Place) -> None:
    compiler(place, "exit 3")
    _without_numba(place)


@kind("aten", "pip install numba")
def numba_was_asked_for_and_is_not_there(place: Place) -> None:
    place.options["cpu_tier"] = "numba"
    _nothing_of_numba()
    _without_numba(place)


@kind("aten", "NumPy")
def numba_is_broken(place: Place) -> None:
    """Simulate a numba built for another numpy."""

    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise SystemError("initialization of _internal failed: needs another NumPy")

    module = Broken("numba")
    module.__spec__ = ModuleSpec("numba", None)
    place.options["cpu_tier"] = "numba"
    _nothing_of_numba()
    place.patch.setitem(sys.modules, "numba", module)


def _nothing_of_numba() -> None:
    """Reset numba's caches to those of a process that has not used it."""
    numba_kernels._names.cache_clear()
    numba_kernels._built.cache_clear()


def as_options(place: Place) -> Any:
    return make_options({"cache_dir": str(place.cache), **place.options})
