"""Bundles: files of the cache in one zip, which another machine's cache takes in.

`write_bundle` takes names of cached files. The zip has `manifest.json` first (the format's version,
the versions and the processor that made the files, size and SHA-256 of each) and then the files,
named as in the cache. `read_bundle` stores those that fit this machine, or raises BundleError and
stores nothing.

A bundle is not trusted to be well formed: every name, size, checksum and number is checked before
the first file is stored, under limits, and files are written by `Store.put` alone. Nothing is
unpickled, imported or run meanwhile. But it holds machine code, which runs once a function needs
it, and no checksum says who made that: take bundles only from those whose code you would run.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import stat
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..errors import BundleError
from ..figures import count, size
from ..lazy_dataclass import dataclass
from ..platforms import processor_features
from .store import ENTRY, Store

__all__ = [
    "KINDS",
    "Bundled",
    "Kind",
    "Unbundled",
    "bundle_bytes",
    "read_bundle",
    "read_bundle_bytes",
    "write_bundle",
]

_FORMAT = 1
_MANIFEST = "manifest.json"
# A content_key; entries of one function have one, and are numbered.
_NAME = re.compile(r"([0-9a-f]{64})(-[0-9]{1,2})?(\.[a-z]+)")
_MAX_ENTRIES = 32  # of one function
_MAX_FILES = 50_000
_MAX_FILE = 256 << 20  # bytes
_MAX_MANIFEST = 16 << 20
_MAX_TOTAL = 8 << 30  # for a cache without a limit
_TIME = (1980, 1, 1, 0, 0, 0)  # of every member, so that equal contents make equal bundles
# A zip without a comment ends with a record; an extended one has a locator before that.
_END, _END_BYTES = b"PK\5\6", 22
_LOCATOR, _LOCATOR_BYTES = b"PK\6\7", 20


@dataclass(frozen=True, slots=True)
class Kind:
    """Describes the files of one suffix. `needs`: facts of the machine without which they are
    useless; None: they are not bundled.
    """

    name: str
    needs: tuple[str, ...] | None


KINDS: Mapping[str, Kind] = {
    ".so": Kind("kernel", ("system", "processor")),
    ".o": Kind("object", ("system", "processor")),
    ".gch": Kind("header", None),  # large, and of use to the very same compiler only
    ".cubin": Kind("kernel", ()),
    ".json": Kind("kernel", ()),  # the launch facts of a cubin
    ".py": Kind("text", ()),
    ".tuned": Kind("tuning", ("torch",)),
    ENTRY: Kind("entry", ("torch", "python", "system")),
}


@dataclass(frozen=True, slots=True, repr=False)
class Bundled:
    """Reports a bundle that was written: its path, the number of its files, its size in bytes."""

    path: Path
    files: int
    size: int

    def __repr__(self) -> str:
        return f"{self.path}: {count(self.files, 'file')}, {size(self.size)}"


@dataclass(frozen=True, slots=True, repr=False)
class Unbundled:
    """Reports a bundle that was read: the number and size of files that are new in the cache, how
    many it had, and how many were left out for each reason.
    """

    files: int
    size: int
    present: int
    left_out: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        head = f"stored {count(self.files, 'file')}, {size(self.size)}; {self.present:,} were there"
        return "\n".join(
            (head, *(f"left out {count(n, 'file')} {why}" for why, n in self.left_out))
        )


# ----------------------------------------------------------------------------------------- writing


def write_bundle(path: Path, store: Store, names: Iterable[str]) -> Bundled:
    """Write the named files that are in the cache, undamaged, to a zip, which replaces any file of
    that name at the end. Raises BundleError.
    """
    try:
        with _replacing(path) as out:
            files = _write(path, out, store, names)
    except OSError as error:
        raise BundleError(path, error.strerror or str(error), "choose another path") from error
    return Bundled(path, files, path.stat().st_size)


_PICKLE = Path("a pickle")


def bundle_bytes(store: Store, names: Iterable[str]) -> bytes:
    """Return the bundle that `write_bundle` writes."""
    out = io.BytesIO()
    _write(_PICKLE, out, store, names)
    return out.getvalue()


def _write(path: Path, out: BinaryIO, store: Store, names: Iterable[str]) -> int:
    """Write the zip and return the number of its files."""
    found: dict[str, dict[str, object]] = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        # The manifest is the first member, but its contents are known last: two passes.
        for name, data in _bundled(store, names):
            found[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {"format": _FORMAT, **_facts(), "files": found}
        _add(bundle, _MANIFEST, json.dumps(manifest, indent=1).encode())
        for name, data in _bundled(store, found):
            if hashlib.sha256(data).hexdigest() == found[name]["sha256"]:
                _add(bundle, name, data)
        if len(bundle.namelist()) <= len(found):
            raise BundleError(path, "files of the cache were removed meanwhile", "try again")
    return len(found)


def _bundled(store: Store, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if (kind := _kind_of(name)) is None or kind.needs is None:
            continue
        if (data := store.peek(*os.path.splitext(name))) is not None and len(data) <= _MAX_FILE:
            yield name, data


def _kind_of(name: str) -> Kind | None:
    """Return the kind of a cached file, None if that is no name of one."""
    match = _NAME.fullmatch(name)
    if match is None or (match[2] and match[3] != ENTRY):
        return None
    return KINDS.get(match[3])


def _add(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    bundle.writestr(info, data, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Enter a file that takes the place of `path` at the end, unless an error is raised."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, path)
    except BaseException:  # an interrupt too: it is raised again
        part.unlink(missing_ok=True)
        raise


def _facts() -> dict[str, Any]:
    """Return what compiled files depend on, as a manifest has it."""
    return {
        "torch": torch.__version__,
        "python": sys.implementation.cache_tag,
        "system": f"{sys.platform} {platform.machine()}",
        "processor": sorted({word for line in processor_features() for word in _words(line)}),
    }


def _words(line: str) -> list[str]:
    """Return the features that a line of /proc/cpuinfo lists, or the line: it is a name."""
    name, _, value = line.partition(":")
    is_list = name.strip() in ("flags", "Features")
    return value.split() if is_list else [" ".join(line.split())]


# ----------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Listed:
    """Holds the checked entry of one file in the manifest."""

    name: str
    size: int
    sha256: str
    unfit: str  # the reason why it is of no use here, or ""


def read_bundle(path: Path, store: Store) -> Unbundled:
    """Store the files of a bundle that fit this machine and are not in the cache. Raises
    BundleError, with nothing stored, if it is damaged or nothing in it fits.
    """
    with _opened(path) as file:
        return _read_from(path, file, store)


def read_bundle_bytes(data: bytes, store: Store) -> Unbundled:
    """Do what `read_bundle` does with the bytes of a bundle that a pickle has brought."""
    return _read_from(_PICKLE, io.BytesIO(data), store)


def _read_from(path: Path, file: BinaryIO, store: Store) -> Unbundled:
    with _damage_refused(path):
        _check_end(path, file)
        with zipfile.ZipFile(file) as bundle:
            return _stored(path, bundle, store)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise BundleError(path, getattr(error, "strerror", None) or str(error), "") from error


def _stored(path: Path, bundle: zipfile.ZipFile, store: Store) -> Unbundled:
    members = _members(path, bundle)
    listed = _listed(path, bundle, members)
    fitting = [entry for entry in listed if not entry.unfit]
    _check_room(path, fitting, store)
    for entry in listed:  # all of them, before the first is stored
        _contents(path, bundle, members, entry)
    left_out = Counter(entry.unfit for entry in listed if entry.unfit)
    if listed and not fitting:
        raise BundleError(path, f"its files are {next(iter(left_out))}", "")
    new = [e.size for e in fitting if _store(store, e.name, _contents(path, bundle, members, e))]
    return Unbundled(len(new), sum(new), len(fitting) - len(new), tuple(left_out.items()))


def _store(store: Store, name: str, data: bytes) -> bool:
    """Store a file unless the cache has it. Another entry of the same function stays: the new one
    gets the next free number.
    """
    key, suffix = os.path.splitext(name)
    key, dash, _ = key.partition("-")
    for place in [f"{key}-{n}" for n in range(_MAX_ENTRIES)] if dash else [key]:
        if (present := store.peek(place, suffix)) is None:
            store.put(place, suffix, data)
            return True
        if not dash or present == data:
            return False
    return False


@contextlib.contextmanager
def _damage_refused(path: Path) -> Iterator[None]:
    """Turn the errors of reading a zip into BundleErrors."""
    try:
        yield
    except BundleError:
        raise
    except Exception as error:  # zipfile raises errors of many classes on damaged files
        raise _damaged(path, str(error)) from error


_ANOTHER = "copy or make it again"


def _damaged(path: Path, why: str) -> BundleError:
    return BundleError(path, f"it is damaged: {why}", _ANOTHER)


def _check_end(path: Path, file: BinaryIO) -> None:
    """Bound the directory before zipfile reads it: its last record has no comment and no extension,
    as jitmagic writes it.
    """
    end = file.seek(0, os.SEEK_END)
    if end < _END_BYTES:
        raise _damaged(path, "it is no zip file")
    file.seek(max(0, end - _END_BYTES - _LOCATOR_BYTES))
    before, record = (tail := file.read())[:-_END_BYTES], tail[-_END_BYTES:]
    if not record.startswith(_END) or record[-2:] != bytes(2):
        raise _damaged(path, "it is no zip file, or its end is missing")
    files, length = (int.from_bytes(record[i:j], "little") for i, j in ((10, 12), (12, 16)))
    if before.startswith(_LOCATOR) or files > _MAX_FILES + 1 or length > 256 * (files + 1):
        raise BundleError(path, f"it is larger than a bundle of {_MAX_FILES:,} files", "")


def _members(path: Path, bundle: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in bundle.infolist():
        name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
        if name != _MANIFEST and _kind_of(name) is None:
            raise BundleError(path, f"{name!r} is not the name of a cached file", "")
        if name in members:
            raise BundleError(path, f"{name} is in it twice", "")
        if kind not in (0, stat.S_IFREG) or info.is_dir():
            raise BundleError(path, f"{name} is not a regular file", "")
        if info.flag_bits & 1 or info.compress_type not in _COMPRESSIONS:
            raise BundleError(path, f"{name} is encrypted or of an unknown compression", "")
        members[name] = info
    return members


_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _listed(
    path: Path, bundle: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> list[_Listed]:
    """Return the manifest's files, which are exactly the members of the zip."""
    if _MANIFEST not in members:
        raise BundleError(path, f"it has no {_MANIFEST}", "")
    try:
        manifest = json.loads(_read(path, bundle, members[_MANIFEST], _MAX_MANIFEST))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its manifest is no JSON ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise _damaged(path, "its manifest lists no files")
    if manifest.get("format") != _FORMAT:
        made = str(manifest.get("format"))[:20]
        why = f"its format is {made!r}, and this jitmagic reads format {_FORMAT}"
        raise BundleError(path, why, "make it with the same version of jitmagic")
    unfit = _differences(path, manifest)
    listed = [_entry(path, name, facts, unfit) for name, facts in manifest["files"].items()]
    if {_MANIFEST, *(entry.name for entry in listed)} != members.keys():
        raise _damaged(path, "its manifest lists other files than it has")
    return listed


def _entry(path: Path, name: str, facts: Any, unfit: Mapping[str, str]) -> _Listed:
    kind = _kind_of(name)
    if kind is None or kind.needs is None or not isinstance(facts, dict):
        raise BundleError(path, f"{name[:100]!r} is not the name of a file that is bundled", "")
    length, sha256 = facts.get("size"), facts.get("sha256")
    if type(length) is not int or not 0 <= length <= _MAX_FILE or not isinstance(sha256, str):
        raise _damaged(path, f"the size or checksum of {name}")
    return _Listed(name, length, sha256, next((unfit[f] for f in kind.needs if f in unfit), ""))


def _differences(path: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return for each fact that differs here what to say of files that depend on it."""
    ours, unfit = _facts(), {}
    words = manifest.get("processor")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _damaged(path, "its manifest names no processor")
    titles = {"torch": "torch", "python": "Python", "system": "the system"}
    for fact, title in titles.items():
        if not isinstance(made := manifest.get(fact), str):
            raise _damaged(path, f"its manifest names no {fact}")
        if made != ours[fact]:
            unfit[fact] = f"compiled for {title} {made[:40]}, and this is {ours[fact]}"
    if words != ours["processor"]:
        lacking = [word for word in words if word not in ours["processor"]][:4]
        more = f", which has {', '.join(lacking)[:100]}" if lacking else ""
        unfit["processor"] = f"compiled for another kind of processor than this one{more}"
    return unfit


def _check_room(path: Path, fitting: Iterable[_Listed], store: Store) -> None:
    total, limit = sum(entry.size for entry in fitting), store.size_limit.bytes or _MAX_TOTAL
    if total > limit:
        why = f"its files have {total:,} bytes, and the cache's limit is {limit:,}"
        raise BundleError(path, why, "raise the option cache_size or JITMAGIC_CACHE_SIZE")


def _contents(
    path: Path, bundle: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], entry: _Listed
) -> bytes:
    data = _read(path, bundle, members[entry.name], entry.size)
    if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _damaged(path, f"{entry.name} is not what its checksum says")
    return data


def _read(path: Path, bundle: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    """Return the bytes of a member, which are read no further than to the limit."""
    with bundle.open(info) as member:
        data = member.read(limit + 1)
    if len(data) > limit:
        raise BundleError(path, f"{info.filename} is larger than {limit:,} bytes", "")
    return data
