"""Bounds a cache folder: removes the least recently used files once they exceed a number of bytes.

In: a folder, and the size of each file as it is added. Out: a folder that stays near its limit.
Counting costs one append: the length of the file `usage`, in pages of 4 KiB, is an upper bound of
the pages of all files, over all processes. Only when it passes the limit is the folder listed, by
one process at a time, which then sets the true length.

Files that were written or used in the last minutes stay, as do folders in which something is being
built. A removed file that a process has open is still readable, and counts as absent afterwards.
An error of the disk never reaches the caller: the files are then counted later, or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from ..lazy_dataclass import dataclass

__all__ = ["USAGE", "File", "SizeLimit", "files_of"]

USAGE = "usage"
_PAGE = 4096  # bytes: what a small file takes on most disks
_REMAINING = 0.8  # share of the limit that a sweep leaves, so that the next one is far away


@dataclass(frozen=True, slots=True)
class File:
    """Describes a cached file; `size` in bytes, `used` and `made` in seconds since 1970."""

    name: str
    size: int
    used: float
    made: float


def files_of(folder: Path) -> Iterator[File]:
    """Yield the cached files of a folder, in no order. Raises OSError."""
    with os.scandir(folder) as found:
        for item in found:
            with contextlib.suppress(OSError):  # removed meanwhile
                facts = item.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode) and item.name != USAGE:
                    yield File(item.name, facts.st_size, _used(facts), facts.st_mtime)


def _used(facts: os.stat_result) -> float:
    return max(facts.st_atime, facts.st_mtime)


class SizeLimit:
    """Keeps a folder near so many bytes; 0: any number. Safe for threads and processes.

    recent: seconds for which a written or used file is kept, more than recorded times may be behind
    pause: seconds between two sweeps of a process, for a folder full of recent files
    """

    def __init__(self, number: int, recent: float = 120.0, pause: float = 10.0) -> None:
        self.bytes = number
        self._recent = recent
        self._pause = pause
        self._swept = -pause

    def added(self, folder: Path, size: int) -> None:
        """Count a file that was written to `folder`, and remove others if they are too many."""
        # Without a limit a file is counted only for processes that have one.
        create = os.O_CREAT if self.bytes else 0
        with contextlib.suppress(OSError):
            fd = os.open(folder / USAGE, _APPEND | create, 0o600)
            try:
                is_new = os.fstat(fd).st_size == 0
                os.write(fd, bytes(_pages(size)))
                if self.bytes and (is_new or os.fstat(fd).st_size > self.bytes // _PAGE):
                    self._sweep(folder, fd)
            finally:
                os.close(fd)

    def _sweep(self, folder: Path, fd: int) -> None:
        now = time.monotonic()
        if now - self._swept < self._pause:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process sweeps
            return
        except OSError:  # no locks on this disk: two sweeps at a time remove no more than one
            pass
        self._swept = now
        os.ftruncate(fd, _evict(folder, self.bytes // _PAGE, self._recent))


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def _pages(size: int) -> int:
    return -(-size // _PAGE)


def _evict(folder: Path, limit: int, recent: float) -> int:
    """Remove the least recently used files and return the pages of all others; `limit` in pages."""
    files = sorted(files_of(folder), key=lambda file: file.used)
    pages = sum(_pages(file.size) for file in files)
    if pages <= limit:
        return pages
    for file in files:
        if pages <= limit * _REMAINING or time.time() - file.used < recent:
            break
        with contextlib.suppress(OSError):
            if _used(os.lstat(folder / file.name)) == file.used:  # else used since the listing
                os.unlink(folder / file.name)
                pages -= _pages(file.size)
    return pages
