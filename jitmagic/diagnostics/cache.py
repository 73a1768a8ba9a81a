"""cache: `jitmagic.cache` shows, empties, packs and unpacks the cache on disk.

Input: the folders that the options name; the environment is read at each use. Output: frozen
records of files, and reports of what was done, shown as text and HTML. Only the own folder is
listed and cleared; shared caches are never changed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import overload

from ..api import handle_of, tagged_handle
from ..artifact.entry import StoredEntry
from ..artifact.guards import Mismatch
from ..artifact.library import stored_files
from ..errors import BundleError, UsageError
from ..lazy_dataclass import dataclass
from ..options import make_options
from ..runtime.bundles import KINDS, Bundled, Unbundled, read_bundle, write_bundle
from ..runtime.store import ENTRY, SharedFolder, Store, store_of
from .explanation.html import grid_html
from .words import count, duration, size

__all__ = ["Cache", "CachedFile", "CachedFiles", "Cleared", "cache"]

_OTHER = "other"
_SHOWN = 60  # files that a listing shows


@dataclass(frozen=True, slots=True)
class CachedFile:
    """Describes one file of the cache.

    key: the hash of everything that its contents depend on; kind: "kernel", "entry", ...
    size: bytes; used, made: seconds since 1970; name: of the function that an entry is of, or ""
    """

    key: str
    suffix: str
    kind: str
    size: int
    used: float
    made: float
    name: str = ""

    @property
    def file(self) -> str:
        """The file's name in the folder."""
        return self.key + self.suffix


class _Grid:
    """A result that is shown as a table."""

    __slots__ = ()

    @property
    def title(self) -> str:
        """The line above the table."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings."""
        raise NotImplementedError

    @property
    def rows(self) -> Sequence[tuple[str, ...]]:
        """The cells."""
        raise NotImplementedError

    @property
    def notes(self) -> Sequence[str]:
        """Lines below the table."""
        return []

    def __str__(self) -> str:
        rows = [self.columns, *self.rows] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join((self.title, *(f"  {line}" for line in lines), *self.notes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return grid_html(self)


@dataclass(frozen=True, slots=True, repr=False)
class CachedFiles(_Grid, Sequence[CachedFile]):
    """The files of the cache, the most recently used first."""

    found: tuple[CachedFile, ...]

    @overload
    def __getitem__(self, at: int) -> CachedFile: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[CachedFile, ...]: ...
    def __getitem__(self, at: int | slice) -> CachedFile | tuple[CachedFile, ...]:
        return self.found[at]

    def __len__(self) -> int:
        return len(self.found)

    @property
    def title(self) -> str:
        """The number and size of the files."""
        return _amount(self.found)

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings."""
        return ("key", "kind", "size", "used", "made", "name")

    @property
    def rows(self) -> Sequence[tuple[str, ...]]:
        """The first files."""
        return [
            (f.key[:12], f.kind, size(f.size), _ago(f.used), _ago(f.made), f.name)
            for f in self.found[:_SHOWN]
        ]

    @property
    def notes(self) -> Sequence[str]:
        """The number of files that are not shown."""
        more = len(self.found) - _SHOWN
        return [f"and {count(more, 'more file')}"] if more > 0 else []


@dataclass(frozen=True, slots=True, repr=False)
class Cleared:
    """Reports removed files: their number, and their size in bytes."""

    files: int
    size: int

    def __repr__(self) -> str:
        return f"removed {count(self.files, 'file')}, {size(self.size)}"


class Cache(_Grid):
    """The cache on disk in which compiled code outlives the process.

    `jitmagic.cache` is the one of the default options; `jitmagic.cache.at(folder)` that of the
    option `cache_dir`. Shown in a notebook, it is a table of what the folders hold.
    """

    __slots__ = ("_cache_dir",)

    def __init__(self, cache_dir: str | None = None) -> None:
        self._cache_dir = cache_dir

    def at(self, cache_dir: str | os.PathLike[str]) -> Cache:
        """Return the cache that functions with this option `cache_dir` use."""
        return Cache(os.fspath(cache_dir))

    @property
    def folder(self) -> Path:
        """The folder that holds the files."""
        return self._store.folder

    @property
    def shared(self) -> tuple[SharedFolder, ...]:
        """The shared caches, in their order; `problem` says why one is not used."""
        return self._store.shared

    @property
    def limit(self) -> int:
        """The bytes beyond which the least recently used files are removed; 0: none."""
        return self._store.size_limit.bytes

    def list(self, kind: str | None = None) -> CachedFiles:
        """Return a record of each file, or of those of a kind, the most recently used first."""
        return CachedFiles(tuple(self._files(kind, named=True)))

    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(file.size for file in self._store.files())

    def clear(
        self, older_than: float | str | timedelta | None = None, kind: str | None = None
    ) -> Cleared:
        """Remove all files, or those of a kind and those that were last used longer ago than
        `older_than`: seconds, a timedelta, or text such as "12 h" and "30 days".

        Processes that use them compile again. What is being built, and shared caches, stay.
        """
        store, chosen = self._store, list(self._files(kind))
        if older_than is not None:
            before = time.time() - _seconds(older_than)
            chosen = [file for file in chosen if file.used < before]
        for file in chosen:
            store.remove(file.file)
        if older_than is None and kind is None:
            store.clear()  # what a killed process left, too
        return Cleared(len(chosen), sum(file.size for file in chosen))

    def bundle(self, path: str | os.PathLike[str], *targets: object) -> Bundled:
        """Write cached files to one zip, for `unbundle` on another machine of the same kind.

        targets: tagged functions and modules, with their entries and kernels; names of entries and
            beginnings of keys, as `list` shows them; without any, everything in the own folder
        Raises BundleError if there is nothing to write or the path cannot be written.
        """
        named = [name for target in targets for name in self._names(target)]
        names = dict.fromkeys(named if targets else [file.file for file in self._files()])
        if not names:
            raise BundleError(Path(path), "the cache holds no such files", "call the functions")
        return write_bundle(Path(path).expanduser(), self._store, names)

    def unbundle(self, path: str | os.PathLike[str]) -> Unbundled:
        """Store the files of a bundle that fit this machine and are not here yet.

        A bundle holds machine code that compiled functions run, and nothing says who made it: take
        it only from those whose code you would run. Raises BundleError, with nothing stored, if it
        is damaged, too large, or made for another torch or processor.
        """
        return read_bundle(Path(path).expanduser(), self._store)

    @property
    def title(self) -> str:
        """The number, size and folder of the files."""
        within = f" of {size(self.limit)}" if self.limit else ""
        return f"jitmagic cache: {_amount(tuple(self._files()))}{within}, in {self.folder}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings."""
        return ("kind", "files", "size", "last used")

    @property
    def rows(self) -> Sequence[tuple[str, ...]]:
        """A row for each kind of file."""
        kinds: dict[str, list[CachedFile]] = {}
        for file in self._files():
            kinds.setdefault(file.kind, []).append(file)
        return [
            (kind, f"{len(of):,}", size(sum(f.size for f in of)), _ago(max(f.used for f in of)))
            for kind, of in sorted(kinds.items())
        ]

    @property
    def notes(self) -> Sequence[str]:
        """A line for each shared cache."""
        return [_shared_line(shared) for shared in self.shared]

    @property
    def _store(self) -> Store:
        chosen = {} if self._cache_dir is None else {"cache_dir": self._cache_dir}
        return store_of(make_options(chosen))

    def _files(self, kind: str | None = None, named: bool = False) -> Iterator[CachedFile]:
        """Yield the files, the most recently used first; `named`: entries are read for their
        names.
        """
        kinds = {*(row.name for row in KINDS.values()), _OTHER}
        if kind is not None and kind not in kinds:
            raise UsageError.unknown("kind of cached file", kind, sorted(kinds))
        store = self._store
        for file in reversed(store.files()):
            key, dot, rest = file.name.partition(".")
            row = KINDS.get(suffix := dot + rest)
            if kind in (None, own := row.name if row else _OTHER):
                name = _name_of(store, key) if named and suffix == ENTRY else ""
                yield CachedFile(key, suffix, own, file.size, file.used, file.made, name)

    def _names(self, target: object) -> Iterable[str]:
        """Return the names of the files that a target of `bundle` stands for."""
        if isinstance(target, str) and target:
            known = list(self._files(named=True))
            chosen = [f for f in known if f.name == target or f.key.startswith(target)]
            if not chosen:
                names = sorted({f.name for f in known if f.name}) or ["none"]
                raise UsageError.unknown("cached function or key", target, names)
            return [file.file for file in chosen]
        if handle_of(target) is None:
            raise UsageError(f"{target!r} is neither a tagged function nor a name of the cache")
        return stored_files(tagged_handle(target))


def _name_of(store: Store, key: str) -> str:
    """Return the name of the function in an entry's header."""
    try:
        name = StoredEntry.of(store.peek(key, ENTRY) or b"").header["name"]
    except (Mismatch, LookupError, TypeError, RecursionError):  # of another version
        return ""
    return name if isinstance(name, str) else ""


def _shared_line(shared: SharedFolder) -> str:
    if shared.problem:
        return f"shared cache {shared.folder}: not used, because {shared.problem}"
    files = Store(shared.folder).files()
    total = sum(file.size for file in files)
    return f"shared cache {shared.folder}: {count(len(files), 'file')}, {size(total)}"


def _amount(files: Sequence[CachedFile]) -> str:
    return f"{count(len(files), 'file')}, {size(sum(file.size for file in files))}"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(int(seconds // length), unit)} ago"
    return "now" if seconds < 1 else f"{duration(int(seconds))} ago"


_PERIOD = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])\w*")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(period: float | str | timedelta) -> float:
    if isinstance(period, timedelta):
        return period.total_seconds()
    if isinstance(period, str) and (match := _PERIOD.fullmatch(period.strip())):
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(period, bool) or not isinstance(period, int | float) or not period >= 0:
        raise UsageError(f'older_than is {period!r}; it is seconds, a timedelta, or "30 days"')
    return float(period)


cache = Cache()
