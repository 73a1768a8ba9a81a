"""jitmagic.cache: what the cache on disk holds, and what can be done with it."""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.artifact.entry import FORMAT
from jitmagic.diagnostics.cache import Cache
from jitmagic.runtime.store import Store, content_key, open_store
from tests.processes import run_forked

KEYS = [content_key(str(n)) for n in range(6)]
KINDS = {".so": "kernel", ".entry": "entry", ".tuned": "tuning", ".gch": "header", ".xyz": "other"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: Any) -> Cache:
    """The cache of the default options, in a folder of its own."""
    monkeypatch.setenv("JITMAGIC_CACHE_DIR", str(tmp_path / "own"))
    return jitmagic.cache


def entry(header: object) -> bytes:
    """An entry, as far as `cache` reads one."""
    return zlib.compress(json.dumps({"format": FORMAT, "header": header}).encode())


def fill(cache: Cache) -> Store:
    """A file of each kind, each used a day after the one before; the last ten days ago."""
    store = open_store(str(cache.folder.parent))
    for n, suffix in enumerate(KINDS):
        data = entry({"name": "step"}) if suffix == ".entry" else bytes(100 * n)
        path = store.put(KEYS[n], suffix, data)
        assert path is not None
        used = time.time() - (14 - n) * 86400
        os.utime(path, (used, used - 3600))
    return store


def test_files_are_listed_the_last_used_first(cache: Cache) -> None:
    fill(cache)
    found = cache.list()
    assert [file.kind for file in found] == list(reversed(KINDS.values()))
    assert [file.key for file in found] == KEYS[4::-1]
    assert found[3].name == "step" and not found[0].name
    assert found[0].used - found[0].made == pytest.approx(3600)
    assert sum(file.size for file in found) == cache.size()
    assert [file.kind for file in cache.list(kind="entry")] == ["entry"]
    assert re.search(rf"{KEYS[1][:12]}  entry +\d+ B +13 days ago  13 days ago  step", str(found))
    assert len(cache.list()[1:3]) == 2


def test_listing_is_no_use(cache: Cache) -> None:
    store = fill(cache)
    before = [path.stat().st_atime for path in sorted(store.folder.iterdir())]
    str(cache), str(cache.list()), cache._repr_html_()
    assert [path.stat().st_atime for path in sorted(store.folder.iterdir())] == before


def test_summary_is_text_and_html(cache: Cache, tmp_path: Path, monkeypatch: Any) -> None:
    fill(cache)
    fill(Cache(str(tmp_path / "team")))
    shared = f"{tmp_path / 'team'}:{tmp_path / 'none'}"
    monkeypatch.setenv("JITMAGIC_SHARED_CACHES", shared)
    monkeypatch.setenv("JITMAGIC_CACHE_SIZE", "1 GiB")
    with pytest.warns(jitmagic.FallbackWarning, match="none"):
        text = str(cache)
    assert text.startswith("jitmagic cache: 5 files, ")
    assert f"of 1 GiB, in {tmp_path / 'own' / 'kernels'}" in text
    assert re.search(r"\n  kernel +1 +\d+ B +14 days ago\n", text)
    assert re.search(r"team/kernels: 5 files, .*\n.*none/kernels: not used, because No such", text)
    page = cache._repr_html_()
    assert "<th>last used</th>" in page and "not used, because" in page


def test_html_is_escaped(cache: Cache) -> None:
    open_store(str(cache.folder.parent)).put(KEYS[0], ".entry", entry({"name": "<script>"}))
    assert "&lt;script&gt;" in cache.list()._repr_html_()
    assert "<script>" not in cache.list()._repr_html_()


NAMELESS = (
    b"", b"{}", zlib.compress(b"{}"), zlib.compress(b"[" * 100_000), entry([]), entry(None),
    entry({"name": 3}), entry({}),
)  # fmt: skip


@pytest.mark.parametrize("data", NAMELESS)
def test_entry_without_a_name(cache: Cache, data: bytes) -> None:
    open_store(str(cache.folder.parent)).put(KEYS[0], ".entry", data)
    assert [file.name for file in cache.list()] == [""]


@pytest.mark.parametrize(
    ("age", "removed"),
    [
        ("11.5 days", 3),
        ("12d", 3),
        ("1 week", 5),
        ("300h", 2),
        ("30 days", 0),
        (timedelta(days=11.5), 3),
        (11.5 * 86400, 3),
        (0, 5),
    ],
)
def test_old_files_are_removed(cache: Cache, age: Any, removed: int) -> None:
    fill(cache)
    assert cache.clear(older_than=age).files == removed
    assert [file.key for file in reversed(cache.list())] == KEYS[removed:5]


def test_a_kind_is_removed(cache: Cache) -> None:
    fill(cache)
    with open_store(str(cache.folder.parent)).scratch() as building:
        assert str(cache.clear(kind="tuning")) == f"removed 1 file, {200 + 82} B"
        assert {file.kind for file in cache.list()} == {*KINDS.values()} - {"tuning"}
        assert cache.clear(kind="kernel", older_than="15 days").files == 0
        assert cache.clear().files == 4
        assert building.is_dir()
    assert list(cache.folder.iterdir()) == []
    assert str(cache) == f"jitmagic cache: 0 files, 0 B of 2 GiB, in {cache.folder}"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda cache: cache.clear(kind="kernels"), "did you mean 'kernel'"),
        (lambda cache: cache.list(kind="so"), "known: entry, header, kernel"),
        (lambda cache: cache.clear(older_than="soon"), "30 days"),
        (lambda cache: cache.clear(older_than=-1), "30 days"),
        (lambda cache: cache.clear(older_than=True), "30 days"),
        (lambda cache: cache.bundle("x.jmz", "ste"), "did you mean 'step'"),
        (lambda cache: cache.bundle("x.jmz", print), "neither a tagged function nor a name"),
        (lambda cache: cache.unbundle("gone.jmz"), "gone.jmz: No such file"),
        (lambda cache: cache.at("empty").bundle("x.jmz"), "holds no such files"),
    ],
)
def test_wrong_arguments_change_nothing(
    cache: Cache, call: Any, match: str, tmp_path: Path, monkeypatch: Any
) -> None:
    fill(cache)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jitmagic.JitmagicError, match=match):
        call(cache)
    assert len(cache.list()) == 5
    assert not list(tmp_path.glob("*.jmz"))


def test_names_choose_what_is_bundled(cache: Cache, tmp_path: Path) -> None:
    fill(cache)
    path = tmp_path / "x.jmz"
    assert cache.bundle(path).files == 3  # neither header nor another package's file
    assert cache.bundle(path, "step").files == 1
    assert cache.bundle(path, "step", KEYS[0][:10]).files == 2
    other = cache.at(tmp_path / "other")
    assert other.unbundle(path).files == 2
    assert {file.name for file in other.list()} == {"step", ""}


def plus(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 3 + 2).sum(-1)


def test_bundle_of_a_function_saves_another_process_its_compiles(
    cache: Cache, tmp_path: Path
) -> None:
    first, second = jitmagic.jit(plus), jitmagic.jit(lambda x: x.sin() * 2)
    first(torch.ones(4, 24, requires_grad=True)).sum().backward()
    second(torch.ones(3))
    kernels = sum(record.kernels for record in handle_of(first).journal)
    if not kernels:
        pytest.skip("no C++ compiler on this machine")
    assert cache.bundle(tmp_path / "x.jmz", first).files < len(cache.list(kind="kernel"))
    code = """
        import sys, torch, jitmagic
        from jitmagic.api import handle_of
        from tests.diagnostics.test_cache import plus

        cache = jitmagic.cache
        assert cache.unbundle(sys.argv[1]).files == len(cache.list())
        run = jitmagic.jit(plus)
        run(torch.ones(4, 24, requires_grad=True)).sum().backward()
        records = handle_of(run).journal
        print(sum(r.kernels for r in records), sum(r.cache_hits for r in records))
    """
    done = run_forked(code, str(tmp_path / "x.jmz"), JITMAGIC_CACHE_DIR=str(tmp_path / "new"))
    assert done.stdout.split() == [str(kernels)] * 2, done.stderr


def test_bundle_of_a_function_carries_its_entries(tmp_path: Path) -> None:
    code = """
        import sys, zipfile, torch, jitmagic
        from jitmagic.api import handle_of
        from tests.diagnostics.test_cache import plus

        taken, made = sys.argv[1:]
        if taken:
            jitmagic.cache.unbundle(taken)
        run = jitmagic.jit(plus)
        run(torch.ones(4, 24, requires_grad=True)).sum().backward()
        jitmagic.cache.bundle(made, run)
        print(*sorted(zipfile.ZipFile(made).namelist()))
        print(*(stage.stage for record in handle_of(run).journal for stage in record.stages))
        print(*(file.name for file in jitmagic.cache.list(kind="entry")))
    """
    shown = []
    for number, taken in enumerate(("", str(tmp_path / "0.jmz"))):
        environment = {
            "JITMAGIC_CACHE_DIR": str(tmp_path / f"cache{number}"),
            "JITMAGIC_PERSIST": "1",
        }
        done = run_forked(code, taken, str(tmp_path / f"{number}.jmz"), **environment)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines())
    (files, stages, names), (files_again, stages_again, names_again) = shown
    assert ".entry" in files and files == files_again
    assert "trace" in stages.split() and "trace" not in stages_again.split()
    assert names == names_again == "plus"
