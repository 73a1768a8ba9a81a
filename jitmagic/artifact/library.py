"""Keeps compiled entries on disk, and finds them again in another process.

In: a handle, and the frame of a call that none of its entries fits. Out: an entry that an earlier
process has compiled and whose guards this call passes. Entries lie in the cache of kernels
(runtime/store.py) under the key of their function: its code, the code that a resume function is cut
from, options, versions of Python, torch and jitmagic. A key has a row of places, 0, 1, 2, ...; a
lookup tries them in order. Processes that write at the same time lose at most an entry.

An entry is written when it has been compiled, and again when a backward of it was compiled, or when
it was compared with eager. What keeps an entry out of the library is in the journal (stage "keep").
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from ..bytecode import FrameSnapshot
from ..call_warnings import show_warnings
from ..errors import BundleError, CannotKeep, warn
from ..extend.registry import REGISTRIES
from ..frame.handle import Handle
from ..frame.ledger import Variant
from ..frame.native import Entry
from ..frame.pickling.carried import take
from ..late import collector_paused
from ..late import load as load_late
from ..options import Options
from ..records import FOUND, Recording
from ..runtime.load import Loaded
from ..runtime.store import ENTRY, Store, content_key, store_of
from .entry import FORMAT, StoredEntry, entry_bytes, read_entry
from .fingerprint import fingerprint
from .guards import Mismatch
from .later import LaterBuilds

__all__ = ["carried_code", "find_entry", "keep_entry", "stored_files"]

_PLACES = 32  # entries of one function
# Options that change neither the code nor when it is used.
_IGNORED = frozenset(
    {
        *("notices", "cache_dir", "cache_size", "shared_caches"),
        *("background", "compile_seconds", "on_error", "pickle"),
    }
)


def find_entry(handle: Handle, snapshot: FrameSnapshot, record: Recording) -> Entry | None:
    """Return an entry of an earlier process that fits the call, or None."""
    if (key := _key(handle)) is None:
        return None
    store = store_of(handle.options)
    if (data := take(key)) is not None:
        with record.stage("unbundle") as stage:
            stage.keep(_unbundled(data, store))
    used = {entry.notes.place for entry in handle.dispatcher.entries}
    for place in range(_PLACES):
        if place in used or (data := store.get(_name(key, place), ENTRY)) is None:
            continue
        with record.stage(FOUND) as stage:
            stored = None
            try:
                stored = StoredEntry.of(data)
                later = LaterBuilds(handle.options, record.for_later())
                entry, growing = read_entry(handle, stored, snapshot, later)
            except Mismatch as why:
                stage.keep(str(why))
                if stored is not None:
                    record.known_cost = max(record.known_cost, stored.header["seconds"])
                continue
            stage.keep(stored.header)
        entry.notes.place, entry.notes.is_loaded = place, True
        entry.notes.seconds = stored.header["seconds"]
        _watch(handle, snapshot, entry, growing)
        show_warnings(entry.notes.warned)
        return entry
    return None


def keep_entry(handle: Handle, snapshot: FrameSnapshot, entry: Entry, record: Recording) -> None:
    """Write a new entry to disk, and again when it changes; the journal says why if it cannot."""
    if _key(handle) is None:
        return
    with record.stage("keep") as stage:
        entry.notes.seconds = sum(one.seconds for one in record.stages)
        stage.keep(_write(handle, snapshot, entry))


def _write(handle: Handle, snapshot: FrameSnapshot, entry: Entry) -> str:
    """Write an entry, now and when it changes; return why it cannot be kept, or ""."""
    notes: Variant = entry.notes
    if (key := _key(handle)) is None:  # an extension was registered since it was compiled
        return "its options or extensions have no form on disk"
    header = {"name": handle.label, "at": time.time(), "seconds": notes.seconds,
              "torch": torch.__version__}  # fmt: skip
    try:
        # A backward's first use writes its entry again, outside of the forward's compile.
        with collector_paused():
            data, growing = entry_bytes(handle, entry, snapshot, header)
    except CannotKeep as error:
        return str(error)
    except Exception as error:  # a part that no writer knows: the entry stays in this process
        return f"{type(error).__name__}: {error}"
    store = store_of(handle.options)
    if notes.place is None:
        taken = {other.notes.place for other in handle.dispatcher.entries}
        free = (n for n in range(_PLACES) if n not in taken)
        notes.place = next(
            (n for n in free if store.peek(_name(key, n), ENTRY) is None), _PLACES - 1
        )
    store.put(_name(key, notes.place), ENTRY, data)
    _watch(handle, snapshot, entry, growing)
    return ""


def _watch(handle: Handle, snapshot: FrameSnapshot, entry: Entry, growing: Sequence[Any]) -> None:
    """Write the entry again when one of its parts has changed, or its comparison ends."""
    known = ref(handle)
    bare = FrameSnapshot(
        snapshot.code, (), (), snapshot.globals, snapshot.builtins, snapshot.name, snapshot.qualname
    )  # without the call's tensors

    def write(changed: Entry) -> None:
        if (owner := known()) is not None:
            _write(owner, bare, changed)

    made = ref(entry)

    def write_again() -> None:
        if (changed := made()) is not None:
            write(changed)

    entry.notes.changed = write
    for part in growing:
        part.on_change = write_again


def stored_files(handle: Handle) -> list[str]:
    """Return the names in the cache of the entries of a handle and its resume functions, and of
    their kernels.
    """
    kept = (stage.kept for record in handle.journal for stage in record.stages)
    names = [file for loaded in kept if isinstance(loaded, Loaded) for file in loaded.files]
    for part in dict.fromkeys((handle, *handle.family.members)):
        key = _key(part)
        for entry in part.dispatcher.entries:
            names += entry.notes.files
            if key is not None and entry.notes.place is not None:
                names.append(_name(key, entry.notes.place) + ENTRY)
    return names


# ----------------------------------------------------------------------------------------- pickles

_BUNDLES = "runtime.bundles"
_carried: WeakKeyDictionary[Handle, tuple[str, bytes]] = WeakKeyDictionary()


def carried_code(handle: Handle) -> tuple[str, bytes] | None:
    """Return the key of a handle's entries, and a bundle of them and their kernels that are in the
    cache. None, with a warning, if its options keep it from being there.
    """
    if (key := _key(handle)) is None:
        if handle.options.pickle == "artifact":
            warn(
                f"pickles of {handle.label} carry no code: its options or extensions keep "
                "compiled code out of the cache (persist, backend, freeze)"
            )
        return None
    store, names = store_of(handle.options), [*dict.fromkeys(stored_files(handle))]
    entries = {name: store.peek(name.removesuffix(ENTRY), ENTRY) for name in names
               if name.endswith(ENTRY)}  # fmt: skip
    if not any(entries.values()):
        return None
    version = content_key(*names, *(data or b"" for data in entries.values()))
    if handle not in _carried or _carried[handle][0] != version:  # one object: pickled once
        try:
            _carried[handle] = version, load_late(_BUNDLES).bundle_bytes(store, names)
        except BundleError:  # the cache was emptied meanwhile
            return None
    return key, _carried[handle][1]


def _unbundled(data: bytes, store: Store) -> str:
    """Store the code that a pickle has brought; return what was stored, or why it does not fit."""
    try:
        return str(load_late(_BUNDLES).read_bundle_bytes(data, store))
    except BundleError as error:
        return str(error)


# -------------------------------------------------------------------------------------------- keys


def _name(key: str, place: int) -> str:
    return f"{key}-{place}"


def _key(handle: Handle) -> str | None:
    """Return the key of a handle's entries; None if they are not kept."""
    # What a pass, a rule or a lowering of the user does depends on more than its code (helpers,
    # globals, lists that it reads), and no guard watches that: nothing is kept while there is one.
    if any(registry.recompiles and registry.rows for registry in REGISTRIES):
        return None
    if (setting := _setting(handle.options)) is None:
        return None
    original, bucket = handle.original, repr(handle.family.bucket)
    return content_key(setting, original.qualname, fingerprint(original.code), bucket)


@lru_cache(maxsize=256)
def _setting(options: Options) -> str | None:
    """Return what entries depend on besides their function; None if they are not kept."""
    if not options.persist or options.backend not in ("native", "eager") or options.freeze:
        return None
    chosen = [(f.name, getattr(options, f.name)) for f in fields(options)]
    named = [pair for pair in chosen if pair[0] not in _IGNORED]
    return content_key(str(FORMAT), _versions(), repr(named))


@cache
def _versions() -> str:
    """Return what compiled code depends on: Python, torch, and jitmagic down to its files."""
    return repr((sys.version, torch.__version__, torch.version.git_version, *_own_files()))


def _own_files() -> Iterator[object]:
    """Yield what says which files the package has: what pip has written about those that it has
    installed, else name, size and time of each, as a developer may have edited them.
    """
    package = Path(__file__).parent.parent
    if installed := sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD")):
        yield from (record.read_text() for record in installed)
        return
    folders = [package]
    for folder in folders:
        for one in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if one.is_dir() and one.name != "__pycache__":
                folders.append(Path(one.path))
            elif one.name.endswith((".py", ".so", ".h")):
                facts = one.stat()
                yield one.name, facts.st_size, facts.st_mtime_ns
