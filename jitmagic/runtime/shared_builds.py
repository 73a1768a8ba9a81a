"""Lets one process build what several need at the same time.

In: a store, a name in it, and a function that builds the bytes. Out: the bytes, which this process,
another one with the same cache folder, or another rank of the distributed program has built.
Processes with one folder are kept apart by a lock on a file, which the system releases with its
process. Of ranks with different folders the first one that asks builds, and passes the bytes on by
the store of the process group; the key of a library names compiler, flags and processor, so that
what fits one rank fits all that ask for it.

A process that waits builds itself if the other one fails, says nothing for `_SILENCE`, or takes
longer than `_PATIENCE`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..ranks.board import Board, board, on_tick, watch
from .store import BUILD_PREFIX, Store

__all__ = ["built_once"]

_PATIENCE = 60.0  # seconds; a compile that takes longer is given up (Options.budget)
_SILENCE = 10.0  # seconds, of a rank that says that it builds with each of its looks at the board
_PAUSE = 0.02  # seconds between two looks
_LARGEST, _MOST = 4 << 20, 64 << 20  # bytes of one value, where torch takes 8 MB, and of a rank's
_sent: list[int] = []  # bytes of what this rank has passed on
_building: dict[str, int] = {}  # by this rank, for others that may wait -> how often it said so


def built_once(
    store: Store,
    key: str,
    suffix: str,
    build: Callable[[], bytes],
    cancel: threading.Event | None = None,
) -> bytes:
    """Return the bytes, which are in the store from then on."""
    with _alone(store.folder, f"{key}{suffix}", cancel):
        if (data := store.peek(key, suffix)) is None:
            notes = board()
            data = build() if notes is None else _of_ranks(notes, key + suffix, build, cancel)
            store.put(key, suffix, data)
        return data


# ------------------------------------------------------------------------------ of one cache folder


@contextlib.contextmanager
def _alone(folder: Path, name: str, cancel: threading.Event | None) -> Iterator[None]:
    """Hold the lock of a name. Without it, where there are no locks, two processes build."""
    held = None
    with contextlib.suppress(OSError):
        held = _locked(folder / f"{BUILD_PREFIX}{name}", cancel)
    try:
        yield
    finally:
        if held is not None:
            _unlock(*held)


def _locked(path: Path, cancel: threading.Event | None) -> tuple[Path, int] | None:
    """Return a locked file; None if that takes too long. Raises OSError if there are no locks."""
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends and not (cancel is not None and cancel.is_set()):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_of(fd, path):
                return path, fd
            wait = 0.0  # the process before has removed it: there may be a new one
        except BlockingIOError:
            wait = _PAUSE
        except BaseException:  # an interrupt too must leave no lock behind
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(wait)
    return None


def _is_file_of(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _unlock(path: Path, fd: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open too
    os.close(fd)


# ----------------------------------------------------------------------------- of different folders


def _of_ranks(
    notes: Board, name: str, build: Callable[[], bytes], cancel: threading.Event | None
) -> bytes:
    try:
        is_first = notes.claim(name)
        found = b"" if is_first else _awaited(notes, name, cancel)
    except RuntimeError:  # the process that served the store has ended
        return build()
    return _passed_on(notes, name, build) if is_first else found or build()


def _passed_on(notes: Board, name: str, build: Callable[[], bytes]) -> bytes:
    """Build, and set the value that other ranks wait for: empty bytes if they have to build too."""
    value, _building[name] = b"", 0
    watch(notes)
    try:
        data = build()
        value = _packed(data)
    finally:
        _building.pop(name)
        with contextlib.suppress(RuntimeError):
            notes.put(name, value)
    return data


def _packed(data: bytes) -> bytes:
    packed = zlib.compress(data, 1)
    if len(packed) > _LARGEST or sum(_sent) + len(packed) > _MOST:
        return b""
    _sent.append(len(packed))
    return packed


def _awaited(notes: Board, name: str, cancel: threading.Event | None) -> bytes:
    """Return what the rank that was first has built; empty bytes if it did not."""
    ends, heard, sign = time.monotonic() + _PATIENCE, time.monotonic(), None
    while (now := time.monotonic()) < min(ends, heard + _SILENCE):
        if cancel is not None and cancel.is_set():
            break
        if (value := notes.take(name)) is not None:
            return zlib.decompress(value) if value else b""
        if (latest := notes.take(_sign(name))) != sign:
            heard, sign = now, latest
        time.sleep(_PAUSE)
    return b""


def _sign(name: str) -> str:
    return f"{name}/alive"


def _give_signs(notes: Board) -> None:
    for name, count in list(_building.items()):
        _building[name] = count + 1
        notes.put(_sign(name), str(count).encode())


on_tick(_give_signs)
