"""Builds a precompiled header, so that the headers are parsed once per machine.

In: a store, a key of everything its bytes depend on, and its compile command. Out: the path for
`-include`, once a complete private file exists. Of the 69 ms that g++ 12 takes for a small kernel,
24 are spent parsing the same headers (clang 22: 30 of 72); the kernel's code is byte-identical.

No compile waits for a header. It is built in the background at low priority after enough kernels
were compiled without it, and used by later compiles of any process. An unusable header (a
compiler may reject its own) is not tried again, and `refusals` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from ..errors import ToolchainError
from ..lazy_dataclass import dataclass, field
from .compilers import CompilerProcess
from .private_files import is_use_old, make_private
from .store import BUILD_PREFIX, Store

__all__ = ["Header", "refusals"]

_BREAK_EVEN = 4  # kernels compiled without it: building takes as long as five of them save
_SUFFIX = ".gch"
_MAGIC = (b"gpch", b"CPCH")  # of GCC and clang, which both read FILE.gch for `-include FILE`


@dataclass(eq=False)
class _Build:
    """Represents a running build of a header, in its own folder. The folder has no lock, which
    forked children would inherit; if this process is killed it is removed after an hour.
    """

    process: CompilerProcess
    folder: Path
    out: Path

    def result(self) -> bytes | None:
        """Return the bytes or the compiler's errors when it has ended, None while it runs."""
        if self.process.poll() is None:
            return None
        try:
            return self.out.read_bytes()
        except OSError:
            return self.process.stderr_so_far() or b"the compiler made no file"
        finally:
            self.end()

    def end(self) -> None:
        with self.process:  # Python warns of a pipe that is left open
            if self.process.poll() is None:
                self.process.kill_group()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(eq=False)
class _State:
    """Holds the state of one header in this process; `checked` identifies the last verified
    file.
    """

    misses: int = 0
    build: _Build | None = None
    checked: tuple[int, ...] | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Represents a header; `command` compiles it and lacks the output name at its end.
    Thread-safe.
    """

    store: Store = field(compare=False)
    key: str
    command: Sequence[str]

    def find(self) -> Path | None:
        """Return the argument for `-include`, the file without suffix; None: compile without it."""
        with _lock:
            state = self._state()
            if state.refusal:
                return None
            self._collect(state)
            return self._checked(state)

    def missed(self) -> None:
        """Count a kernel that was compiled without the header."""
        with _lock:
            state = self._state()
            state.misses += 1
            if state.misses >= _BREAK_EVEN and state.build is None and not state.refusal:
                self._begin(state)

    def refuse(self, why: str) -> None:
        """Record that a kernel failed with the header and compiled without it."""
        with _lock:
            self._state().refusal = why

    def _state(self) -> _State:
        return _states.setdefault((str(self.store.folder), self.key), _State())

    def _begin(self, state: _State) -> None:
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=self.store.folder))
            out = folder / "header"
            state.build = _Build(CompilerProcess([*self.command, str(out)]), folder, out)
            state.build.process.lower_priority()
        except (OSError, ToolchainError) as error:
            if state.build is None:  # a read-only or full disk, or no compiler
                state.refusal = str(error)
                shutil.rmtree(folder, ignore_errors=True) if folder else None

    def _collect(self, state: _State) -> None:
        if state.build is not None and (data := state.build.result()) is not None:
            state.build = None
            state.misses = 0  # a header that is removed is built again when that pays
            # Errors are stored too, so that no other process tries.
            self.store.put(self.key, _SUFFIX, data)

    def _checked(self, state: _State) -> Path | None:
        """Check folder and file each time, since the compiler opens a path. The bytes are verified
        only when they change, and once a minute to record the use: 6 MB take 8 ms.
        """
        path = self.store.folder / f"{self.key}{_SUFFIX}"
        try:
            facts = path.lstat()
            if make_private(self.store.folder):
                return None
            if _identity(facts) != state.checked or is_use_old(facts):
                state.checked = _identity(path.lstat()) if self._verified(state) else None
        except OSError:
            return None
        return path.with_suffix("") if state.checked else None

    def _verified(self, state: _State) -> bool:
        data = self.store.read_here(self.key, _SUFFIX)
        if data is not None and not data.startswith(_MAGIC):
            words = data[:2000].decode(errors="replace") if data.isascii() else ""
            state.refusal = words or "its format is unknown"
        return data is not None and not state.refusal


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


_lock = threading.Lock()
_states: dict[tuple[str, str], _State] = {}
_of_parents: list[object] = []


def refusals() -> tuple[str, ...]:
    """Return the errors because of which kernels of this process are compiled without the
    header.
    """
    with _lock:
        return tuple(state.refusal for state in _states.values() if state.refusal)


def _at_exit() -> None:
    """Store a finished header for the next process and stop a running compiler."""
    with _lock:
        for (folder, key), state in _states.items():
            if (build := state.build) is None:
                continue
            with contextlib.suppress(Exception):
                data = build.result()
                if data is None:
                    build.end()
                elif os.path.isdir(folder):
                    Store(Path(folder)).put(key, _SUFFIX, data)


def _after_fork() -> None:
    """Reset the state: compilers are the parent's, and the lock may have been held."""
    global _lock, _states
    _of_parents.append(_states)
    _lock, _states = threading.Lock(), {}


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
