"""Implements the cache on disk, which maps keys to bytes.

In: a key (hash of everything the bytes depend on) and the bytes. Out: the bytes, if a private file
has them undamaged. A file ends with a checksum of its name and contents, and appears by an atomic
rename, so concurrent processes see a complete file or none. Any damage counts as absence, and the
file is replaced. Callers get bytes instead of a path: the checked bytes are loaded.

Shared folders are looked up after the own one, in their order, and are never written to. The own
folder is bounded by `size_limit`; `private_files` says which files are trusted.

No damage or missing permission raises an error. A folder that is not trusted or not writable is
replaced by a private temporary one, with one warning; valid files of a read-only folder are used.
A shared folder that is not trusted is left out, with one warning.
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
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import warn
from ..lazy_dataclass import dataclass
from ..options import Options
from .private_files import make_private, read_private, shared_owner, write_private
from .size_limit import File, SizeLimit, files_of

__all__ = [
    "BUILD_PREFIX",
    "ENTRY",
    "SharedFolder",
    "Store",
    "content_key",
    "open_store",
    "store_of",
    "temporary_folder",
]

_SEAL = b"\njitmagic sha256 "  # at the end, where ELF loaders ignore it
_SEAL_BYTES = len(_SEAL) + 64 + 1
ENTRY = ".entry"  # suffix of compiled entries; the suffixes of kernels are those of their files
BUILD_PREFIX = "build-"  # prefix of folders in which something is being built
_LOCK = "lock"
_SUBFOLDER = "kernels"  # of a folder that an option names
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


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """Represents a further folder that is only read. `owner` is the user who may change its files,
    `problem` why they are not used, or "".
    """

    folder: Path
    owner: int
    problem: str = ""

    def read(self, name: str) -> bytes | None:
        """Return the verified bytes of a file, or None."""
        return _read(self.folder, name, self.owner, marks=False)


class Store:
    """Represents one cache folder and shared ones. `hits` and `misses` count this process's
    requests. Safe for threads and processes.
    """

    def __init__(
        self, folder: Path, limit: SizeLimit | None = None, shared: Sequence[SharedFolder] = ()
    ) -> None:
        self.folder = folder
        self.shared = tuple(shared)
        self.size_limit = limit or SizeLimit(0)
        self.hits = 0
        self.misses = 0
        self._fallback: Path | None = None  # used when `folder` takes no files
        self._lock = threading.Lock()
        self._is_swept = False

    def get(self, key: str, suffix: str) -> bytes | None:
        """Return the verified bytes of `key`, or None if they are absent or damaged."""
        data = self._find(f"{key}{suffix}", marks=True)
        self.hits += data is not None
        self.misses += data is None
        return data

    def peek(self, key: str, suffix: str) -> bytes | None:
        """Return the bytes as `get` does, but neither count the request nor record a use."""
        return self._find(f"{key}{suffix}", marks=False)

    def _find(self, name: str, marks: bool) -> bytes | None:
        data = _read(self.folder, name, marks=marks)
        if data is None and self._fallback is not None:
            data = _read(self._fallback, name)
        if data is None:
            for shared in self.shared:
                if not shared.problem and (data := shared.read(name)) is not None:
                    break
        return data

    def read_here(self, key: str, suffix: str) -> bytes | None:
        """Return the bytes from this folder alone, without counting the request."""
        return _read(self.folder, f"{key}{suffix}")

    def put(self, key: str, suffix: str, data: bytes) -> Path | None:
        """Store the bytes under `key`, replacing any present. Returns the file's path, or None if
        no folder takes it.
        """
        name = f"{key}{suffix}"
        try:
            path = _place(self.folder, name, data)
            self.size_limit.added(self.folder, len(data) + _SEAL_BYTES)
            return path
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

    def files(self) -> list[File]:
        """Return the files of this folder, the least recently used first."""
        try:
            return sorted(files_of(self.folder), key=lambda file: file.used)
        except OSError:  # removed meanwhile
            return []

    def remove(self, name: str) -> None:
        """Remove a file of this folder."""
        _remove(self.folder / name)

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


def _read(folder: Path, name: str, owner: int | None = None, marks: bool = True) -> bytes | None:
    try:
        return _unsealed(name, read_private(f"{folder}/{name}", owner, marks))
    except OSError:
        return None


def _unsealed(name: str, data: bytes | None) -> bytes | None:
    """Return the bytes without the trailer, None if they are not those that were stored."""
    if data is None or len(data) < _SEAL_BYTES:
        return None
    body = data[:-_SEAL_BYTES]
    return body if data[-_SEAL_BYTES:] == _seal(name, body) else None


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


def store_of(options: Options) -> Store:
    """Return the store that a function's options name."""
    return open_store(options.cache_dir, options.cache_bytes, options.shared_caches)


@lru_cache(maxsize=8)
def open_store(cache_dir: str | None, size: int = 0, shared: tuple[str, ...] = ()) -> Store:
    """Return the store in `cache_dir` (default: the user's cache folder), else a temporary one with
    a warning. `size`: its limit in bytes, 0 for none; `shared`: further folders of the same form.
    """
    named = (Path(cache_dir) if cache_dir else _user_cache()) / _SUBFOLDER
    layers = tuple(map(_shared_folder, shared))
    try:
        folder = Path(os.path.realpath(named))
        problem = make_private(folder)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        problem = _reason(error)
    if not problem:
        return Store(folder, SizeLimit(size), layers)
    store = Store(_temporary_store(), shared=layers)
    _warn_unusable(named, problem)
    return store


def _shared_folder(named: str) -> SharedFolder:
    folder, owner = Path(os.path.abspath(named)) / _SUBFOLDER, -1
    try:
        owner, problem = shared_owner(folder)
    except (OSError, ValueError) as error:
        problem = _reason(error)
    if problem:
        warn(
            f"the shared cache {folder} cannot be used ({problem}); what it holds is compiled "
            "again. Correct the folder, or its name in JITMAGIC_SHARED_CACHES or shared_caches."
        )
    return SharedFolder(folder, owner, problem)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _temporary_store() -> Path:
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="jitmagic-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _warn_unusable(folder: Path, why: str) -> None:
    warn(
        f"the kernel cache {folder} cannot be used ({why}); new kernels are kept for this process "
        "only. Set JITMAGIC_CACHE_DIR to a folder of your own.",
    )
