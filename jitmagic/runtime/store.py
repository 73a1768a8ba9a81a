"""The kernel cache on disk: built files by content.

Comes in: a key (hash of everything the built bytes depend on) and a builder. Goes out: the path of
a file whose checksum was just verified. The folder is private (0700); a file appears by atomic
rename together with its checksum in the name's sidecar, so concurrent processes see a whole file or
none, and a damaged file is rebuilt. A folder that cannot be used is replaced by a private temporary
one, with a warning: the process runs on, only the next one starts cold.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from platformdirs import user_cache_path

from ..errors import warn

__all__ = ["Store", "content_key", "open_store"]


def content_key(*parts: str | bytes) -> str:
    """SHA-256 over the parts, each length-prefixed so that no two lists of parts collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Store:
    """One cache folder. `hits` and `misses` count this process's requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hits = 0
        self.misses = 0

    def get(self, key: str, suffix: str) -> Path | None:
        """The verified file for `key`, or None when it is absent or damaged."""
        path = self.folder / f"{key}{suffix}"
        try:
            expected = path.with_suffix(suffix + ".sha256").read_text()
            if _checksum(path) == expected:
                self.hits += 1
                return path
        except OSError:
            pass
        self.misses += 1
        return None

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """Have `build` write a scratch file, then move it into place; interrupted builds leave
        nothing."""
        path = self.folder / f"{key}{suffix}"
        scratch = Path(tempfile.mkdtemp(prefix="build-", dir=self.folder))
        try:
            built = scratch / f"out{suffix}"
            build(built)
            note = scratch / "checksum"
            note.write_text(_checksum(built))
            os.replace(built, path)
            os.replace(note, path.with_suffix(suffix + ".sha256"))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return path

    def clear(self) -> None:
        """Remove every cached file of this folder."""
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_private(folder: Path) -> bool:
    """Kernels are code: only a folder that nobody else can write to is trusted."""
    facts = folder.stat()
    mine = facts.st_uid == os.getuid() if hasattr(os, "getuid") else True
    return mine and not stat.S_IMODE(facts.st_mode) & 0o022


def _usable(folder: Path) -> str:
    """Create the folder if need be; an empty string, or why it cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder):
            return "it belongs to somebody else or others may write to it"
        with tempfile.NamedTemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


@lru_cache(maxsize=8)
def open_store(cache_dir: str | None) -> Store:
    """The store in `cache_dir` (default: the user's cache folder), or a temporary one with a
    warning."""
    folder = (Path(cache_dir) if cache_dir else user_cache_path("jitmagic")) / "kernels"
    problem = _usable(folder)
    if not problem:
        return Store(folder)
    temporary = Path(tempfile.mkdtemp(prefix="jitmagic-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    warn(
        f"the kernel cache {folder} cannot be used ({problem}); kernels are kept for this process "
        "only. Set JITMAGIC_CACHE_DIR to a folder of your own.",
    )
    return Store(temporary)
