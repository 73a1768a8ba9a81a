"""Files and folders that nobody else can change: what code may be loaded from.

In: a path. Out: its bytes, or the reason why it is not trusted. Trusted are the current user and
root: a folder is private when it and every folder above it belong to one of them and nobody else
may write there. A sticky folder (/tmp) may stand above, because in it only owners can rename, and
the next folder's owner is checked too. A file is judged by the descriptor that it is read from, so
what was checked is what is read.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import lru_cache
from pathlib import Path

__all__ = ["make_private", "read_private", "write_private"]

_LARGEST = 1 << 30  # bytes of a file that can be one of ours


def make_private(folder: Path) -> str:
    """Create what is missing of a resolved path, each folder with mode 0700. Returns why the folder
    must not be used, or an empty string; raises OSError where it cannot be made.
    """
    missing = []
    above = folder
    while not os.path.lexists(above):
        missing.append(above)
        above = above.parent
    if missing:
        if why := _distrust(above, is_last=False):
            return why
        for place in reversed(missing):
            place.mkdir(mode=0o700, exist_ok=True)
    return _distrust(folder, is_last=True)


def _distrust(folder: Path, is_last: bool) -> str:
    """Who else could change what lies in `folder`; empty when nobody. `is_last`: files are to be
    loaded from it; otherwise a folder of ours will be made in it.
    """
    for place in (*reversed(folder.parents), folder):
        facts = os.lstat(place)
        if not stat.S_ISDIR(facts.st_mode):
            return f"{place} is not a folder"
        if facts.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to somebody else"
        is_sticky = bool(facts.st_mode & stat.S_ISVTX) and not (is_last and place == folder)
        if not is_sticky and _others_may_write(facts, place):
            return f"others may write to {place}"
    return ""


def _others_may_write(facts: os.stat_result, path: Path | int) -> bool:
    if facts.st_mode & stat.S_IWOTH:
        return True
    if not facts.st_mode & stat.S_IWGRP:
        return False
    # Distributions whose umask is 002 give each user a group of their own. Under an access
    # control list the group's bits stand for everybody whom the list names.
    return facts.st_gid not in _own_groups(os.geteuid()) or _has_access_list(path)


@lru_cache(maxsize=4)
def _own_groups(user: int) -> frozenset[int]:
    """The user's private group: the primary one, if it bears the user's name and has no others."""
    try:
        entry = pwd.getpwuid(user)
        group = grp.getgrgid(entry.pw_gid)
    except KeyError:
        return frozenset()
    alone = group.gr_name == entry.pw_name and set(group.gr_mem) <= {entry.pw_name}
    return frozenset({entry.pw_gid} if alone else ())


def _has_access_list(path: Path | int) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (OSError, AttributeError):  # not Linux, or a file system without them
        return False


def read_private(path: Path) -> bytes | None:
    """The bytes of a regular file that only we or root can write; None where it is another kind of
    file. Raises OSError where it cannot be opened.
    """
    # Not through a link, and not waiting for whoever writes to a pipe in its place.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
            return None
        if facts.st_uid not in (0, os.geteuid()) or _others_may_write(facts, fd):
            return None
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """A new file, whatever the umask is; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
