"""Reads and writes private files: code may be loaded from them, as no other user can change them.

In: a path. Out: its bytes, or the reason why it is not trusted. The current user and root are
trusted: a folder is private if it and each parent belong to one of them and other users may not
write there. A parent may be sticky (/tmp): only owners can rename in it, and the next folder's
owner is checked too. A file is checked through the descriptor that it is read from, so the checked
file is the one read.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import lru_cache
from pathlib import Path

__all__ = ["make_private", "read_private", "write_private"]

_MAX_BYTES = 1 << 30  # bytes, far above the size of any cache file


def make_private(folder: Path) -> str:
    """Create the missing parts of a resolved path with mode 0700. Returns why the folder must not
    be used, or an empty string; raises OSError if it cannot be created.
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
    """Return why another user could change files in `folder`, or "". `is_last` says that files will
    be loaded from it; otherwise a subfolder will be created in it.
    """
    for place in (*reversed(folder.parents), folder):
        facts = os.lstat(place)
        if not stat.S_ISDIR(facts.st_mode):
            return f"{place} is not a folder"
        if facts.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user"
        is_sticky = bool(facts.st_mode & stat.S_ISVTX) and not (is_last and place == folder)
        if not is_sticky and _others_may_write(facts, place):
            return f"others may write to {place}"
    return ""


def _others_may_write(facts: os.stat_result, path: Path | int) -> bool:
    if facts.st_mode & stat.S_IWOTH:
        return True
    if not facts.st_mode & stat.S_IWGRP:
        return False
    # Distributions with umask 002 give each user a private group. With an access control list the
    # group bits apply to everyone on the list.
    return facts.st_gid not in _own_groups(os.geteuid()) or _has_access_list(path)


@lru_cache(maxsize=4)
def _own_groups(user: int) -> frozenset[int]:
    """Return the user's private group: the primary one, with the user's name and no other
    members.
    """
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
    """Return the bytes of a regular file that only this user or root can write, else None. Raises
    OSError if it cannot be opened.
    """
    # Do not follow a link, and do not block on a pipe in its place.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
            return None
        if facts.st_uid not in (0, os.geteuid()) or _others_may_write(facts, fd):
            return None
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """Create a private file whatever the umask; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
