"""Bundles of cached files: read whole, or refused with a sentence and nothing stored."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jitmagic.errors import BundleError
from jitmagic.runtime import bundles
from jitmagic.runtime.bundles import KINDS, read_bundle, write_bundle
from jitmagic.runtime.size_limit import SizeLimit
from jitmagic.runtime.store import Store, content_key
from tests.processes import ROOT

from .hostile_bundles import bomb, mutated

_SUFFIXES = (".so", ".o", ".cubin", ".json", ".py", ".tuned", "-0.entry", ".so")
FILES = {
    content_key(str(n)) + suffix: hashlib.sha256(str(n).encode()).digest() * (n + 1)
    for n, suffix in enumerate(_SUFFIXES)
}


def put(store: Store, name: str, data: bytes) -> None:
    key, dot, suffix = name.partition(".")
    store.put(key, dot + suffix, data)


def contents(store: Store) -> dict[str, bytes | None]:
    return {file.name: store.peek(*os.path.splitext(file.name)) for file in store.files()}


@pytest.fixture
def full(tmp_path: Path) -> Store:
    store = Store(tmp_path / "full")
    for name, data in FILES.items():
        put(store, name, data)
    return store


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "empty")


def test_everything_arrives(full: Store, empty: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jmz"
    made = write_bundle(path, full, FILES)
    assert (made.files, made.size) == (len(FILES), path.stat().st_size)
    read = read_bundle(path, empty)
    assert contents(empty) == FILES
    assert (read.files, read.present, read.left_out) == (len(FILES), 0, ())
    assert str(read_bundle(path, empty)) == "stored 0 files, 0 B; 8 were there"
    assert sorted(os.listdir(tmp_path)) == ["empty", "full", "x.jmz"]


def test_manifest_says_what_the_files_are(full: Store, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.jmz", full, FILES)
    with zipfile.ZipFile(tmp_path / "x.jmz") as bundle:
        assert bundle.namelist() == ["manifest.json", *FILES]
        manifest = json.loads(bundle.read("manifest.json"))
        assert bundle.testzip() is None
    assert (manifest["format"], manifest["torch"]) == (1, torch.__version__)
    for name, data in FILES.items():
        expected = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert manifest["files"][name] == expected


def test_equal_contents_make_equal_bundles(full: Store, tmp_path: Path) -> None:
    made = [write_bundle(tmp_path / f"{n}.jmz", full, FILES).path.read_bytes() for n in range(2)]
    assert made[0] == made[1]


def test_what_is_damaged_or_no_use_elsewhere_is_left_out(full: Store, tmp_path: Path) -> None:
    first = next(iter(FILES))
    (full.folder / first).write_bytes(b"damaged")
    put(full, f"{content_key('h')}.gch", b"gpch")
    put(full, "probe.so", b"no key")
    names = [file.name for file in full.files()]
    assert write_bundle(tmp_path / "x.jmz", full, names).files == len(FILES) - 1


def test_a_bundle_changes_no_time_of_use(full: Store, tmp_path: Path) -> None:
    for name in FILES:
        os.utime(full.folder / name, (1000, 2000))
    write_bundle(tmp_path / "x.jmz", full, FILES)
    assert {(full.folder / name).stat().st_atime for name in FILES} == {1000}


def test_file_is_replaced_at_the_end(full: Store, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x.jmz"
    path.write_text("before")
    monkeypatch.setattr(full, "peek", lambda *name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_bundle(path, full, FILES)
    assert path.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["full", "x.jmz"]


@pytest.mark.parametrize("name", ["missing/x.jmz", "full"])
def test_path_that_cannot_be_written(full: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="hint: choose another path"):
        write_bundle(tmp_path / name, full, FILES)
    assert contents(full) == FILES


def test_own_files_are_not_replaced(full: Store, empty: Store, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.jmz", full, FILES)
    name = next(iter(FILES))
    put(empty, name, b"own")
    assert read_bundle(tmp_path / "x.jmz", empty).present == 1
    assert contents(empty) == {**FILES, name: b"own"}


def test_entries_of_one_function_are_added_to_those_present(
    full: Store, empty: Store, tmp_path: Path
) -> None:
    key = content_key("function")
    for number, data in enumerate((b"float", b"double", b"half")):
        put(full, f"{key}-{number}.entry", data)
    put(empty, f"{key}-0.entry", b"double")
    put(empty, f"{key}-2.entry", b"long")
    names = [file.name for file in full.files() if file.name.startswith(key)]
    write_bundle(tmp_path / "x.jmz", full, sorted(names))
    for new in (2, 0):
        assert read_bundle(tmp_path / "x.jmz", empty).files == new
        found = [contents(empty)[f"{key}-{number}.entry"] for number in range(4)]
        assert found == [b"double", b"float", b"long", b"half"]


# ------------------------------------------------------------------------------- other machines


def _made_elsewhere(path: Path, store: Store, monkeypatch: Any, **facts: object) -> None:
    with monkeypatch.context() as patch:
        real = bundles._facts()
        patch.setattr(bundles, "_facts", lambda: {**real, **facts})
        write_bundle(path, store, FILES)


ELSEWHERE = {
    "torch": ("2.11.0", {".tuned", ".entry"}, "for torch 2.11.0, and this is 2"),
    "python": ("cpython-399", {".entry"}, "for Python cpython-399, and this is cpython"),
    "system": ("linux riscv64", {".so", ".o", ".entry"}, "for the system linux riscv64"),
    "processor": (["avx9", "model"], {".so", ".o"}, "of processor than this one, which has avx9"),
}


@pytest.mark.parametrize("fact", ELSEWHERE)
def test_what_does_not_fit_is_left_out(
    fact: str, full: Store, empty: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    value, suffixes, why = ELSEWHERE[fact]
    path = tmp_path / "x.jmz"
    _made_elsewhere(path, full, monkeypatch, **{fact: value})
    read = read_bundle(path, empty)
    assert contents(empty) == {n: d for n, d in FILES.items() if Path(n).suffix not in suffixes}
    [(reason, number)] = read.left_out
    assert why in reason and number == len(FILES) - read.files
    assert f"left out {number} file" in str(read)


def test_nothing_that_fits_is_an_error(full: Store, empty: Store, tmp_path: Path, monkeypatch: Any):
    for name in list(contents(full)):
        if not name.endswith((".so", ".o")):
            full.remove(name)
    _made_elsewhere(tmp_path / "x.jmz", full, monkeypatch, processor=["avx9"])
    with pytest.raises(BundleError, match="compiled for another kind of processor"):
        read_bundle(tmp_path / "x.jmz", empty)
    assert not empty.folder.exists()


def test_every_suffix_that_the_package_stores_has_a_kind() -> None:
    call = re.compile(r'(?:store\.(?:get|put)\([^)]*"|_SUFFIX\w* = "|_SUFFIXES = .*")(\.\w+)"')
    texts = [path.read_text() for path in (ROOT / "jitmagic" / "runtime").glob("*.py")]
    found = {suffix for text in texts for suffix in call.findall(text)}
    assert {".so", ".o", ".gch", ".cubin", ".json", ".tuned"} <= found <= KINDS.keys()


# --------------------------------------------------------------------------------- hostile bundles


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """A folder of its own, the only one in which anything may appear."""
    before = {path for path in tmp_path.parent.iterdir()}
    home = set(os.listdir(Path.home())), set(os.listdir("/tmp"))
    yield tmp_path
    assert {path for path in tmp_path.parent.iterdir()} == before
    new = set(os.listdir("/tmp")) - home[1]
    assert not any(name.partition(".")[0] in "".join(FILES) for name in new)
    assert set(os.listdir(Path.home())) == home[0]


def _refused_or_right(path: Path, folder: Path) -> bool:
    """Read into a fresh cache: everything stored is what was packed, or nothing is stored."""
    store = Store(folder, SizeLimit(64 << 20))
    try:
        read_bundle(path, store)
    except BundleError as error:
        assert str(path) in str(error)
        assert not folder.exists(), "stored before it was refused"
        return False
    stored = {path.name: path for path in folder.rglob("*") if path.name != "usage"}
    assert stored.keys() <= FILES.keys()
    assert all(store.peek(*os.path.splitext(n)) == FILES[n] for n in stored)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return True


def test_mutations_are_refused_or_right(full: Store, watched: Path) -> None:
    path = watched / "in" / "x.jmz"
    path.parent.mkdir()
    write_bundle(path, full, FILES)
    good, taken = path.read_bytes(), 0
    before = sorted(watched.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zipfile, of a name that is written twice
        for seed in range(2000):
            path.write_bytes(mutated(good, seed))
            taken += _refused_or_right(path, watched / "cache")
            assert sorted(watched.rglob("*")) == before, seed
    assert 20 < taken < 700, "mutations are neither all harmless nor all fatal"


def test_bombs_are_refused_in_little_memory(full: Store, watched: Path) -> None:
    path = watched / "x.jmz"
    write_bundle(path, full, FILES)
    good = path.read_bytes()
    peak = 0
    for seed in range(12):
        path.write_bytes(bomb(good, seed))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert not _refused_or_right(path, watched / "cache")
        peak = max(peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert peak < 150 << 10  # KiB


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [("_MAX_FILES", 3, "larger than a bundle of 3 files"), ("_MAX_FILE", 100, "size or checksum")],
)
def test_limits(
    limit: str, value: int, why: str, full: Store, empty: Store, tmp_path: Path, monkeypatch: Any
) -> None:
    write_bundle(tmp_path / "x.jmz", full, FILES)
    monkeypatch.setattr(bundles, limit, value)
    with pytest.raises(BundleError, match=why):
        read_bundle(tmp_path / "x.jmz", empty)


def test_more_than_the_cache_may_hold(full: Store, tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.jmz", full, FILES)
    small = Store(tmp_path / "small", SizeLimit(200))
    with pytest.raises(BundleError, match="limit is 200.*\n.*cache_size"):
        read_bundle(tmp_path / "x.jmz", small)


@pytest.mark.parametrize("case", ["missing", "folder", "empty", "text", "link to nowhere"])
def test_no_bundle_at_all(case: str, empty: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.jmz"
    if case == "folder":
        path.mkdir()
    elif case in ("empty", "text"):
        path.write_text("" if case == "empty" else "x" * 1000)
    elif case == "link to nowhere":
        path.symlink_to("nowhere")
    with pytest.raises(BundleError, match=r"x\.jmz: "):
        read_bundle(path, empty)
