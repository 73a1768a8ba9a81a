"""The limit of the cache on disk: what is removed, when, and by many processes at once."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import jitmagic
from jitmagic.options import make_options
from jitmagic.runtime import size_limit
from jitmagic.runtime.size_limit import USAGE, SizeLimit
from jitmagic.runtime.store import Store, store_of
from tests.processes import run_forked

PAGE = 4096


def bounded(folder: Path, pages: int, **changed: Any) -> Store:
    """A store whose files may be removed at once, by each put that passes the limit."""
    return Store(folder, SizeLimit(pages * PAGE, **{"recent": 0.0, "pause": 0.0, **changed}))


def fill(store: Store, keys: range, used: float = 1000.0) -> None:
    """Each file takes a page, and was used a second after the one before."""
    for n in keys:
        path = store.put(f"k{n}", ".so", b"x" * 3000)
        assert path is not None
        os.utime(path, (used + n, used + n))


def left(store: Store) -> list[int]:
    return [int(file.name[1:].partition(".")[0]) for file in store.files()]


def test_least_recently_used_files_are_removed(tmp_path: Path) -> None:
    store = bounded(tmp_path, 10)
    fill(store, range(10))
    assert left(store) == list(range(10))
    for n in (0, 3):
        assert store.get(f"k{n}", ".so") is not None
    store.put("k10", ".entry", b"x")
    assert left(store) == [5, 6, 7, 8, 9, 0, 3, 10]  # 80 % of the limit is left


def test_kinds_of_files_share_the_limit(tmp_path: Path) -> None:
    store = bounded(tmp_path, 10)
    for n in range(40):
        store.put(f"k{n}", (".so", ".entry", ".cubin")[n % 3], bytes(2 * PAGE))
        time.sleep(0.002)
    files = store.files()
    assert sum(-(-file.size // PAGE) for file in files) <= 10 + 3
    assert files[-1].name == "k39.so"


def test_a_use_is_recorded_at_most_once_a_minute(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.put("k", ".so", b"code")
    assert path is not None
    now = time.time()
    for ago, is_recorded in ((3600, True), (30, False), (-3600, True)):
        os.utime(path, (now - ago, now - 7200))
        assert store.get("k", ".so") == b"code"
        facts = path.stat()
        assert (abs(facts.st_atime - now) < 20) == is_recorded, ago
        assert facts.st_mtime == pytest.approx(now - 7200)
    os.utime(path, (now - 3600, now - 7200))
    assert store.peek("k", ".so") == b"code"
    assert path.stat().st_atime == pytest.approx(now - 3600)


def test_what_was_just_written_or_used_is_kept(tmp_path: Path) -> None:
    store = bounded(tmp_path, 10, recent=60.0)
    fill(store, range(5))
    with store.scratch() as building:
        for n in range(5, 40):
            store.put(f"k{n}", ".so", b"x")
        assert building.is_dir()
    assert set(left(store)) == set(range(5, 40))


def test_a_file_used_since_the_listing_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    store = bounded(tmp_path, 10)
    fill(store, range(10))
    stale = list(size_limit.files_of(tmp_path))
    for n in range(10):
        assert store.get(f"k{n}", ".so")
    monkeypatch.setattr(size_limit, "files_of", lambda folder: iter(stale))
    store.put("k10", ".so", b"x")
    assert sorted(int(p.stem[1:]) for p in tmp_path.glob("*.so")) == list(range(11))


def test_folder_is_listed_seldom(tmp_path: Path, monkeypatch: Any) -> None:
    listed: list[Path] = []
    real = size_limit.files_of
    monkeypatch.setattr(
        size_limit, "files_of", lambda folder: listed.append(folder) or real(folder)
    )
    store = bounded(tmp_path, 100)
    fill(store, range(100))
    assert len(listed) == 1  # files of an older version are counted once
    fill(store, range(100, 200))
    assert len(listed) <= 7
    full = bounded(tmp_path / "full", 10, recent=60.0, pause=60.0)
    (tmp_path / "full").mkdir(0o700)
    del listed[:]
    fill(full, range(50), used=time.time())
    assert len(listed) == 1


def test_files_of_an_unbounded_time_are_counted(tmp_path: Path) -> None:
    fill(Store(tmp_path), range(30))
    assert not (tmp_path / USAGE).exists()
    bounded(tmp_path, 10).put("new", ".so", b"x")
    assert len(list(tmp_path.glob("*.so"))) <= 10
    fill(Store(tmp_path), range(30, 60))
    bounded(tmp_path, 10).put("newer", ".so", b"x")
    assert len(list(tmp_path.glob("*.so"))) <= 10


def _is_folder(usage: Path, undo: ExitStack) -> None:
    usage.mkdir()


def _is_link(usage: Path, undo: ExitStack) -> None:
    usage.symlink_to(usage.parent.parent / "elsewhere")


def _is_locked(usage: Path, undo: ExitStack) -> None:
    fcntl.flock(undo.enter_context(usage.open("ab")), fcntl.LOCK_EX)


@pytest.mark.parametrize("harm", [_is_folder, _is_link, _is_locked])
def test_trouble_with_the_count_reaches_no_caller(tmp_path: Path, harm: Any) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    with ExitStack() as undo:
        harm(folder / USAGE, undo)
        store = bounded(folder, 10)
        fill(store, range(20))
        assert left(store) == list(range(20))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 << 29), ("500 mb", 5 * 10**8), (4096, 4096), ("0", 0)],
)
def test_sizes_are_read(given: Any, expected: int, monkeypatch: Any) -> None:
    assert make_options({"cache_size": given}).cache_bytes == expected
    monkeypatch.setenv("JITMAGIC_CACHE_SIZE", str(given))
    assert make_options().cache_bytes == expected


@pytest.mark.parametrize(
    "given", ["two", "2 XB", "GB", "2 BG", "-1", "nan", "inf", -1, 1.5, None, True, ""]
)
def test_other_sizes_are_refused(given: Any) -> None:
    with pytest.raises(jitmagic.OptionError, match="2 GiB"):
        make_options({"cache_size": given})


def test_options_name_the_limit(tmp_path: Path) -> None:
    options = make_options({"cache_dir": str(tmp_path), "cache_size": 10 * PAGE})
    assert store_of(options).size_limit.bytes == 10 * PAGE
    assert store_of(options) is store_of(make_options(options))
    assert store_of(make_options()).size_limit.bytes == 2 << 30


# ------------------------------------------------------------------------------ several processes

WORKERS = """
    import hashlib, os, random, sys, traceback
    from pathlib import Path
    from jitmagic.runtime.size_limit import SizeLimit
    from jitmagic.runtime.store import Store

    folder, recent = Path(sys.argv[1]), float(sys.argv[2])

    def work(seed):
        draw, seen = random.Random(seed), 0
        store = Store(folder, SizeLimit(200 * 4096, recent, pause=0.0))
        for turn in range(150):
            n = draw.randrange(400)
            key, suffix = hashlib.sha256(str(n).encode()).hexdigest(), (".so", ".entry")[n % 2]
            data = key.encode() * (1 + n % 200)
            if draw.random() < 0.5:
                assert store.put(key, suffix, data) is not None
            found = store.get(key, suffix)
            assert found is None or found == data, "another file's bytes"
            seen += found is not None
            if turn % 25 == 0:
                with store.scratch() as building:
                    (building / "kernels.cpp").write_text(key)
                    for _ in range(5):
                        store.put(key, suffix, data)
                    assert (building / "kernels.cpp").read_text() == key
        assert seen > 10

    def fork(seed):
        if pid := os.fork():
            return pid
        try:
            work(seed)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    print([os.waitpid(pid, 0)[1] for pid in list(map(fork, range(8)))])
"""


@pytest.mark.parametrize("recent", [0.0, 120.0])
def test_eight_processes_put_and_evict(tmp_path: Path, recent: float) -> None:
    done = run_forked(WORKERS, str(tmp_path), str(recent))
    assert (done.stdout.strip(), done.stderr) == (str([0] * 8), "")
    store = bounded(tmp_path, 200)
    if not recent:  # each of eight may have passed the limit by one file before the last sweep
        assert sum(-(-file.size // PAGE) for file in store.files()) <= 200 + 8 * 4
    assert not list(tmp_path.glob("build-*"))
    for file in store.files():
        assert store.get(*os.path.splitext(file.name)) is not None
