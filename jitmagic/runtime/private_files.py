"""Reads and writes private files: code may be loaded from them, as no other user can change them.

In: a path. Out: its bytes, or the reason why it is not trusted. The current user and root are
trusted: a folder is private if it and each parent belong to one of them and other users may not
write there. A parent may be sticky (/tmp): only owners can rename in it, and the next folder's
owner is checked too. A file is checked through the descriptor that it is read from, so the checked
file is the one read.

A shared folder has the same rule, except that its owner is trusted too, whoever that is: the user
named the folder, as one names a folder to import modules from. A path through a sticky parent or a
symbolic link does not say who is meant, and gives no such trust: other users may have made it. In a
shared folder jitmagic changes nothing, not even a file's time of use.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import time
from functools import lru_cache
from pathlib import Path

__all__ = ["is_use_old", "make_private", "read_private", "shared_owner", "write_private"]

_MAX_BYTES = 1 << 30  # bytes, far above the size of any cache file
_USE_SECONDS = 60.0  # how far a recorded time of use may be behind
_NO_USE = getattr(os, "O_NOATIME", 0)  # else a listing counts as a use, at most once a day


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


def shared_owner(folder: Path) -> tuple[int, str]:
    """Return the owner of an absolute path, and why files in it must not be used or "". Raises
    OSError if it cannot be read.
    """
    owner = os.stat(folder).st_uid
    os.scandir(os.path.join(folder, ".")).close()  # it may be listed and entered
    real = Path(os.path.realpath(folder))
    if owner not in (0, os.geteuid()) and real != folder:
        return owner, f"it belongs to another user and is a link to {real}; name that"
    return owner, _distrust(real, is_last=True, owner=owner)


def _distrust(folder: Path, is_last: bool, owner: int | None = None) -> str:
    """Return why another user could change files in `folder`, or "". `is_last` says that files will
    be loaded from it; otherwise a subfolder will be created in it. `owner` is trusted too.
    """
    sticky = None  # the folder above, if anybody may have created what is in it
    for place in (*reversed(folder.parents), folder):
        facts = os.lstat(place)
        if not stat.S_ISDIR(facts.st_mode):
            return f"{place} is not a folder"
        if facts.st_uid not in (0, os.geteuid(), owner):
            return f"{place} belongs to another user"
        if sticky is not None and facts.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another user, and others may write to {sticky}"
        sticky = None
        if _others_may_write(facts, place):
            if not facts.st_mode & stat.S_ISVTX or (is_last and place == folder):
                return f"others may write to {place}"
            sticky = place
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


def read_private(path: str, owner: int | None = None, marks: bool = True) -> bytes | None:
    """Return the bytes of a regular file that only this user, root and `owner` can write, else
    None. `marks`: record that it was used. Raises OSError if it cannot be opened.
    """
    fd = _open(path)
    with open(fd, "rb", buffering=0) as file:
        if (facts := _trusted(fd, owner)) is None:
            return None
        if marks and is_use_old(facts):
            _mark_used(fd, facts)
        return file.read()


def _open(path: str) -> int:
    # Do not follow a link, and do not block on a pipe in its place.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags | _NO_USE)
    except PermissionError:  # only the owner may leave the time of use as it is
        return os.open(path, flags)


def _trusted(fd: int, owner: int | None) -> os.stat_result | None:
    """Return the facts of an open file, None if it is not trusted or not a regular file."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
        return None
    if facts.st_uid not in (0, os.geteuid(), owner) or _others_may_write(facts, fd):
        return None
    return facts


def is_use_old(facts: os.stat_result) -> bool:
    """Return whether the recorded time of a file's last use is more than a minute from now."""
    return abs(time.time() - facts.st_atime) > _USE_SECONDS


def _mark_used(fd: int, facts: os.stat_result) -> None:
    """Record now as the time of a file's last use: that is its access time, which file systems keep
    seldom or not at all by themselves. The time of writing stays.
    """
    with contextlib.suppress(OSError):  # the file is root's, or the disk is read-only
        os.utime(fd, ns=(time.time_ns(), facts.st_mtime_ns))


def write_private(path: Path, data: bytes) -> None:
    """Create a private file whatever the umask; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
