"""The front end's work on our headers, done once per machine: a precompiled header.

In: a store, a key of all that its bytes depend on, the command of its compile. Out: the path that
`-include` takes, once there is a whole file that only we can write. Of the 69 ms that g++ 12 takes
for a small kernel 24 go into the same headers again; the kernel is the same, byte for byte.

No compile waits for one: it is built beside the process, at low priority, once so many kernels
were compiled without that it pays, and is found by a later compile, of this process or another.
What cannot be used (clang makes another kind; a compiler refuses its own) is not asked for again,
and `refusals` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ToolchainError
from .compilers import CompilerProcess
from .private import make_private
from .store import BUILD_PREFIX, Store

__all__ = ["Header", "refusals"]

_PAYS = 4  # kernels compiled without: it takes as long as five of them save
_SUFFIX = ".gch"
_MAGIC = b"gpch"  # of GCC's; clang's would have to be named by another option
_NICE = 10


@dataclass(eq=False)
class _Build:
    """A compiler at work on one, in a folder of its own. Unlocked, it is swept after an hour where
    this process is killed: a lock would be held by whatever this process forks.
    """

    process: CompilerProcess
    folder: Path
    out: Path

    def result(self) -> bytes | None:
        """What it made, or its words where it made nothing; None while it is at work."""
        if self.process.poll() is None:
            return None
        try:
            return self.out.read_bytes()
        except OSError:
            return self.process.words_so_far() or b"the compiler made no file"
        finally:
            self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill_group()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(eq=False)
class _State:
    """What this process knows of one header. `checked`: the file that was found to be whole."""

    misses: int = 0
    build: _Build | None = None
    checked: tuple[int, ...] | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """`command`: what compiles it, without the name of the output, which comes last. May be used
    by several threads at once.
    """

    store: Store = field(compare=False)
    key: str
    command: Sequence[str]

    def find(self) -> Path | None:
        """What `-include` takes: the file without its suffix; None: compile without."""
        with _lock:
            state = self._state()
            if state.refusal:
                return None
            self._collect(state)
            return self._checked(state)

    def missed(self) -> None:
        """A kernel was compiled without."""
        with _lock:
            state = self._state()
            state.misses += 1
            if state.misses >= _PAYS and state.build is None and not state.refusal:
                self._begin(state)

    def refuse(self, why: str) -> None:
        """A kernel was compiled without, and could not be with it."""
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
            os.setpriority(os.PRIO_PGRP, state.build.process.pid, _NICE)
        except (OSError, ToolchainError) as error:
            if state.build is None:  # read-only, full, no compiler any more
                state.refusal = str(error)
                shutil.rmtree(folder, ignore_errors=True) if folder else None

    def _collect(self, state: _State) -> None:
        if state.build is not None and (data := state.build.result()) is not None:
            state.build = None
            state.misses = 0  # one that is removed is made anew, when that pays again
            # Words too: no other process need try.
            self.store.put(self.key, _SUFFIX, data)

    def _checked(self, state: _State) -> Path | None:
        """The compiler opens a path, so the folder is asked each time, the bytes when they change:
        6 MB take 8 ms.
        """
        path = self.store.folder / f"{self.key}{_SUFFIX}"
        try:
            facts = path.lstat()
            if make_private(self.store.folder):
                return None
        except OSError:
            return None
        file = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if file != state.checked:
            data = self.store.read_here(self.key, _SUFFIX)
            if data is None:
                return None
            if not data.startswith(_MAGIC):
                words = data[:2000].decode(errors="replace") if data.isascii() else ""
                state.refusal = words or "it is not one of GCC's"
                return None
            state.checked = file
        return path.with_suffix("")


_lock = threading.Lock()
_states: dict[tuple[str, str], _State] = {}
_of_parents: list[object] = []


def refusals() -> tuple[str, ...]:
    """Why kernels of this process are compiled without, if there was anything wrong."""
    with _lock:
        return tuple(state.refusal for state in _states.values() if state.refusal)


def _at_exit() -> None:
    """A header that is ready is kept, by the next process; a compiler at work is stopped."""
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
    """Compilers at work are the parent's, and the lock may have been held."""
    global _lock, _states
    _of_parents.append(_states)
    _lock, _states = threading.Lock(), {}


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
