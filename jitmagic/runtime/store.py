"""Implements the kernel cache on disk, which maps keys to bytes.

In: a key (hash of everything the bytes depend on) and the bytes. Out: the bytes, if a private file
has them undamaged. A file ends with a checksum of its name and contents, and appears by an atomic
rename, so concurrent processes see a complete file or none. Any damage counts as absence, and the
file is replaced. Callers get bytes instead of a path: the checked bytes are loaded.

No damage or missing permission raises an error. A folder that is not trusted or not writable is
replaced by a private temporary one, with one warning; valid files of a read-only folder are used.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ..errors import warn
from .private_files import make_private, read_private, write_private

__all__ = ["BUILD_PREFIX", "Store", "content_key", "open_store", "temporary_folder"]

_SEAL = b"\njitmagic sha256 "  # at the end, where ELF loaders ignore it
_SEAL_BYTES = len(_SEAL) + 64 + 1
BUILD_PREFIX = "build-"  # prefix of folders in which something is being built
_LOCK = "lock"
_UNLOCKED_SECONDS = 3600.0  # age at which an unlocked build folder is abandoned


def content_key(*parts: str | bytes) -> str:
    """Return the SHA-256 of the length-prefixed parts: no two lists of parts collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _seal(name: str, data: bytes) -> bytes:
    """Return the trailer; the checksum covers the name, so a renamed file counts as damaged too."""
    return _SEAL + content_key(name, data).encode() + b"\n"


class Store:
    """Represents one cache folder. `hits` and `misses` count this process's requests. Safe for
    threads and processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hits = 0
        self.misses = 0
        self._fallback: Path | None = None  # used when `folder` takes no files
        self._lock = threading.Lock()
        self._is_swept = False

    def get(self, key: str, suffix: str) -> bytes | None:
        """Return the verified bytes of `key`, or None if they are absent or damaged."""
        name = f"{key}{suffix}"
        for folder in (self.folder, self._fallback):
            if folder is not None and (data := _read(folder / name)) is not None:
                self.hits += 1
                return data
        self.misses += 1
        return None

    def read_here(self, key: str, suffix: str) -> bytes | None:
        """Return the bytes from this folder alone, without counting the request."""
        return _read(self.folder / f"{key}{suffix}")

    def put(self, key: str, suffix: str, data: bytes) -> Path | None:
        """Store the bytes under `key`, replacing any present. Returns the file's path, or None if
        no folder takes it.
        """
        name = f"{key}{suffix}"
        try:
            return _place(self.folder, name, data)
        except OSError as error:
            fallback = self._fallback_folder(error)
        try:
            return _place(fallback, name, data) if fallback is not None else None
        except OSError:  # no disk at all: the caller has the bytes
            return None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Enter a private folder for a compiler's files, removed afterwards. Raises OSError if the
        store takes none. If this process is killed, another one removes it.
        """
        _check(self.folder)
        with self._lock:
            swept, self._is_swept = self._is_swept, True
        if not swept:
            _sweep(self.folder)
        with _build_folder(self.folder) as folder:
            yield folder

    def clear(self) -> None:
        """Remove every cached file of this folder, except running builds."""
        for path in self.folder.iterdir():
            if not path.name.startswith(BUILD_PREFIX):
                _remove(path)
        _sweep(self.folder)

    def _fallback_folder(self, error: OSError) -> Path | None:
        with self._lock:
            if self._fallback is None:
                try:
                    self._fallback = _temporary_store()
                except OSError:
                    return None
                _warn_unusable(self.folder, error.strerror or str(error))
            return self._fallback


def _read(path: Path) -> bytes | None:
    try:
        data = read_private(path)
    except OSError:
        return None
    if data is None or len(data) < _SEAL_BYTES:
        return None
    body = data[:-_SEAL_BYTES]
    return body if data[-_SEAL_BYTES:] == _seal(path.name, body) else None


def _check(folder: Path) -> None:
    """Create the folder, which may have been removed meanwhile; raises OSError if it is
    unusable.
    """
    if why := make_private(folder):
        raise PermissionError(why)


def _place(folder: Path, name: str, data: bytes) -> Path:
    _check(folder)
    path = folder / name
    with _build_folder(folder) as scratch:
        part = scratch / "part"
        write_private(part, data + _seal(name, data))
        if path.is_dir() and not path.is_symlink():  # a rename replaces anything but a folder
            os.replace(path, scratch / "obstacle")
        os.replace(part, path)
    return path


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Enter a private system folder, removed afterwards; raises OSError if there is none."""
    folder = Path(tempfile.mkdtemp(prefix="jitmagic-build-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------- build folders and their owners
# A build folder's owner holds a lock, which the system releases with the process. Process ids are
# reused, and mean nothing on other machines and containers that share the folder.


@contextlib.contextmanager
def _build_folder(folder: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix=BUILD_PREFIX, dir=folder))
    try:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # no locks here: removed after an hour
                # The lock file is locked before the rename makes it visible, so no process finds it
                # free.
                held.enter_context(_locked(scratch / "locking"))
                os.rename(scratch / "locking", scratch / _LOCK)
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the build folders of processes that were killed."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(BUILD_PREFIX) and _is_abandoned(path):
                _remove(path)


def _is_abandoned(build: Path) -> bool:
    lock = build / _LOCK
    try:
        if not lock.is_file():  # not locked yet, or made by an older version
            return time.time() - build.lstat().st_mtime > _UNLOCKED_SECONDS
        with _locked(lock):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock on a file; raises OSError if it is taken or locks are unsupported."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------------ which folder


def _user_cache() -> Path:
    """Return the folder of jitmagic in the user's cache folder."""
    base, home = (os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "HOME"))
    if sys.platform == "linux" and os.path.isabs(base or home):
        return Path(base or f"{home}/.cache") / "jitmagic"
    from platformdirs import user_cache_path  # noqa: PLC0415 - 2 ms, which Linux is spared

    return user_cache_path("jitmagic")


@lru_cache(maxsize=8)
def open_store(cache_dir: str | None) -> Store:
    """Return the store in `cache_dir` (default: the user's cache folder), else a temporary one with
    a warning.
    """
    named = (Path(cache_dir) if cache_dir else _user_cache()) / "kernels"
    try:
        folder = Path(os.path.realpath(named))
        problem = make_private(folder)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        problem = getattr(error, "strerror", None) or str(error)
    if not problem:
        return Store(folder)
    store = Store(_temporary_store())
    _warn_unusable(named, problem)
    return store


def _temporary_store() -> Path:
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="jitmagic-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _warn_unusable(folder: Path, why: str) -> None:
    warn(
        f"the kernel cache {folder} cannot be used ({why}); new kernels are kept for this process "
        "only. Set JITMAGIC_CACHE_DIR to a folder of your own.",
    )
