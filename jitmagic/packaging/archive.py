"""Writes and reads archives: files in one zip, each with a checksum.

Written: a zip whose members are stored without compression, at multiples of 64 bytes, with
`checksums.json` as the last: the SHA-256 of each other one. It appears at once or not at all. Read:
the files, all of them checked. Whatever is not exactly such a zip raises ArtifactRefused before any
of it is used: another name, a name that is in it twice, a length or a checksum that differs.
Nothing is extracted: members are bytes in memory, their names are keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import tempfile
import zipfile
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import torch

from ..errors import ArtifactRefused
from ..platforms import usable_processors

__all__ = ["FORMAT", "read_archive", "write_archive"]

FORMAT = 2
"""The version of artifact.json."""

_CHECKSUMS = "checksums.json"
_NAME = re.compile(
    r"artifact\.json|checksums\.json|(tensors/\d{1,6}|kernels/[0-9a-f]{64}\.\w{2,6})"
)
_HEADER_BYTES = 30  # of a member in front of its name and its extra field
_ALIGNMENT = 64
_PADDING_ID = 0x4D4A  # no registered kind of extra field
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal contents give equal files
_MOST_BYTES = 64 << 30
_MOST_FILES = 100_000
_MOST_THREADS = 8


def write_archive(path: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write files to an archive. Raises OSError if the folder takes none."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    place = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, data in {**files, _CHECKSUMS: json.dumps(sums).encode()}.items():
                member = zipfile.ZipInfo(name, _EPOCH)
                member.extra = _padding(file.tell() + _HEADER_BYTES + len(name))
                archive.writestr(member, data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, place)
    except BaseException:  # an interrupt too: it is raised again
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _padding(start: int) -> bytes:
    """Return the extra field of a member whose data would start there without it."""
    count = -(start + 4) % _ALIGNMENT
    return struct.pack("<HH", _PADDING_ID, count) + bytes(count)


def read_archive(path: str | os.PathLike[str]) -> dict[str, memoryview]:
    """Return the files of an archive, as parts of one buffer, which may be written to.

    Raises ArtifactRefused, or OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            return _read(Path(path), file, members)
        except ArtifactRefused:
            raise
        except Exception as error:  # any class: zipfile lets errors of its parts through
            raise ArtifactRefused(path, f"it is damaged ({error})") from error


def _read(path: Path, file: BinaryIO, members: list[zipfile.ZipInfo]) -> dict[str, memoryview]:
    if len(members) > _MOST_FILES or sum(one.file_size for one in members) > _MOST_BYTES:
        raise ArtifactRefused(path, "it is larger than an artifact can be")
    # Not a bytearray, whose memory is set to zero first. Tensors of the program are parts of it.
    # Not huge pages: 20 ms in place of 55 for 100 MB where the machine has some at hand, but 120 to
    # 250 in a virtual machine whose host has to find them.
    buffer = torch.empty(file.seek(0, os.SEEK_END), dtype=torch.uint8).numpy().data
    file.seek(0)
    if file.readinto(buffer) < len(buffer):  # type: ignore[attr-defined]
        raise ArtifactRefused(path, "it was cut while it was read")
    files: dict[str, memoryview] = {}
    for member in members:
        _check_member(path, member, files)
        files[member.filename] = _contents(path, buffer, member)
    wanted = json.loads(bytes(files.pop(_CHECKSUMS, b"{}")))
    if _checksums(files) != wanted:
        raise ArtifactRefused(path, "a file in it is not what its checksum says")
    return files


def _contents(path: Path, buffer: memoryview, member: zipfile.ZipInfo) -> memoryview:
    """Return the part of an archive that is a member. Its CRC-32 is left to the checksums."""
    at = member.header_offset
    name_bytes, extra_bytes = struct.unpack_from("<HH", buffer, at + _HEADER_BYTES - 4)
    start = at + _HEADER_BYTES + name_bytes + extra_bytes
    found = buffer[start : start + member.file_size]
    if len(found) < member.file_size:
        raise ArtifactRefused(path, f"{member.filename} is cut")
    return found


def _checksums(files: Mapping[str, memoryview]) -> dict[str, str]:
    """Return the SHA-256 of each file: 0.9 to 1.7 GB/s on a core, so several share the work."""
    with ThreadPoolExecutor(min(usable_processors(), _MOST_THREADS)) as threads:
        sums = threads.map(lambda data: hashlib.sha256(data).hexdigest(), files.values())
        return dict(zip(files, sums, strict=True))


def _check_member(path: Path, member: zipfile.ZipInfo, files: Collection[str]) -> None:
    name, mode = member.filename, stat.S_IFMT(member.external_attr >> 16)
    if _NAME.fullmatch(name) is None or mode not in (0, stat.S_IFREG):
        raise ArtifactRefused(path, f"it has a file {name[:60]!r}, as no artifact has")
    if name in files:
        raise ArtifactRefused(path, f"it has two files {name}")
    is_plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
    if not is_plain or member.file_size != member.compress_size:
        raise ArtifactRefused(path, f"{name} is compressed or encrypted, as in no artifact")
