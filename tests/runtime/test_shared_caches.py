"""Shared caches: further folders that are read after the own one, trusted by a stated rule, and
never changed.
"""

from __future__ import annotations

import os
import shutil
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import FallbackWarning
from jitmagic.options import make_options
from jitmagic.runtime.store import Store, open_store, store_of
from tests.processes import run_forked

TEAM, MEMBER, STRANGER = 12345, 12346, 12347  # user numbers
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@pytest.fixture(autouse=True)
def _opened_anew() -> Iterator[None]:
    open_store.cache_clear()
    yield
    open_store.cache_clear()


def filled(folder: Path, **files: bytes) -> Path:
    """A cache folder with files, as `JITMAGIC_CACHE_DIR` names it."""
    store = open_store(str(folder))
    for key, data in files.items():
        store.put(key, ".so", data)
    return folder


def opened(own: Path, *shared: Path) -> Store:
    return open_store(str(own), 0, tuple(map(str, shared)))


def state(folder: Path) -> list[tuple[object, ...]]:
    """All that could change in a folder, except times of use: reading it here is one."""
    return [
        (path, path.lstat().st_mode, path.lstat().st_mtime, path.is_file() and path.read_bytes())
        for path in sorted([folder, *folder.rglob("*")])
    ]


def test_folders_are_looked_up_in_their_order(tmp_path: Path) -> None:
    first = filled(tmp_path / "first", a=b"first", b=b"first")
    second = filled(tmp_path / "second", a=b"second", b=b"second", c=b"second")
    own = filled(tmp_path / "own", a=b"own")
    store = opened(own, first, second)
    assert [store.get(key, ".so") for key in "abcd"] == [b"own", b"first", b"second", None]
    assert (store.hits, store.misses) == (3, 1)
    assert store.read_here("b", ".so") is None


def test_a_shared_folder_is_never_changed(tmp_path: Path) -> None:
    shared = filled(tmp_path / "shared", a=b"a", bad=b"bad")
    path = shared / "kernels" / "bad.so"
    path.write_bytes(b"damaged")
    os.utime(shared / "kernels" / "a.so", (1, 1))
    before = state(shared)
    os.utime(shared / "kernels" / "a.so", (1, 1))
    facts = (shared / "kernels" / "a.so").stat()
    store = opened(tmp_path / "own", shared)
    assert (store.get("a", ".so"), store.get("bad", ".so")) == (b"a", None)
    store.put("a", ".so", b"a")
    store.put("bad", ".so", b"bad")
    with store.scratch():
        pass
    store.clear()
    assert store.get("a", ".so") == b"a"
    assert (shared / "kernels" / "a.so").stat() == facts
    assert state(shared) == before


def test_a_renamed_file_counts_as_absent(tmp_path: Path) -> None:
    shared = filled(tmp_path / "shared", a=b"a")
    (shared / "kernels" / "a.so").rename(shared / "kernels" / "b.so")
    assert opened(tmp_path / "own", shared).get("b", ".so") is None


# --------------------------------------------------------------------------- which folders are used


def _writable(folder: Path) -> None:
    folder.chmod(0o777)


def _for_the_group(folder: Path) -> None:
    os.chown(folder, -1, 4242)
    folder.chmod(0o775)


def _gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _is_file(folder: Path) -> None:
    _gone(folder)
    folder.write_text("no folder")


@as_root
@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (_writable, "others may write"),
        (_for_the_group, "others may write"),
        (_gone, "No such file"),
        (_is_file, "Not a directory"),
    ],
)
@pytest.mark.parametrize("part", ["", "kernels"])
def test_untrusted_folder_is_left_out_with_a_warning(
    tmp_path: Path, harm: Callable[[Path], None], why: str, part: str
) -> None:
    shared, good = filled(tmp_path / "shared", a=b"a"), filled(tmp_path / "good", a=b"good")
    harm(shared / part)
    with pytest.warns(FallbackWarning, match=f"shared.*{why}.*SHARED_CACHES"):
        store = opened(tmp_path / "own", shared, good)
    assert store.get("a", ".so") == b"good"
    assert why in store.shared[0].problem
    assert not store.shared[1].problem
    assert opened(tmp_path / "own", shared, good) is store  # which does not warn again


def test_invalid_name_is_left_out(tmp_path: Path) -> None:
    with pytest.warns(FallbackWarning, match="null byte"):
        assert open_store(str(tmp_path), 0, ("a\0b",)).get("a", ".so") is None


def test_environment_names_the_folders(tmp_path: Path, monkeypatch: Any) -> None:
    folders = [filled(tmp_path / name, **{name: b"x"}) for name in ("a", "b")]
    monkeypatch.setenv("JITMAGIC_SHARED_CACHES", f"{folders[0]}{os.pathsep}{folders[1]}:")
    options = make_options({"cache_dir": str(tmp_path / "own")})
    assert options.shared_caches == tuple(map(str, folders))
    assert [store_of(options).get(key, ".so") for key in "ab"] == [b"x", b"x"]
    assert make_options({"shared_caches": folders[0]}).shared_caches == (str(folders[0]),)
    assert make_options({"shared_caches": []}).shared_caches == ()
    hash(make_options({"shared_caches": [str(folders[0]), folders[1]]}))
    with pytest.raises(jitmagic.OptionError, match="list of paths"):
        make_options({"shared_caches": [3]})


# ------------------------------------------------------------------------------------ other users


def _published(folder: Path, owner: int, *, mode: int = 0o755) -> None:
    """Give a folder away, and let others read it: chmod -R a+rX."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, owner, owner)
        path.chmod(mode if path.is_dir() else mode & 0o666)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may enter, as pytest's own are not."""
    folder = Path(mkdtemp(prefix="jitmagic-shared-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, work: Callable[[], None]) -> None:
    """Run `work` in a child with the rights of that user."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@as_root
def test_folder_of_root_serves_a_user(place: Path) -> None:
    """A container image."""
    shared = filled(place / "image", a=b"a")
    _published(shared, 0)
    os.utime(shared / "kernels" / "a.so", (1, 1))
    before = state(shared)

    def work() -> None:
        home = Path(mkdtemp(dir="/var/tmp"))
        store = opened(home, shared)
        assert store.get("a", ".so") == b"a"
        assert store.put("b", ".so", b"b") is not None
        assert sorted(path.name for path in (home / "kernels").iterdir()) == ["b.so"]
        store.clear()
        (home / "kernels").rmdir()
        home.rmdir()

    as_user(MEMBER, work)
    assert state(shared) == before


@as_root
def test_folder_of_a_team_that_the_user_names(place: Path) -> None:
    """Its owner is trusted, and nobody else: neither a stranger's file in it nor his folder."""
    shared = filled(place / "team", a=b"a", b=b"b", c=b"c", d=b"d")
    _published(shared, TEAM)
    kernels = shared / "kernels"
    os.chown(kernels / "b.so", STRANGER, STRANGER)
    (kernels / "c.so").chmod(0o664)
    (kernels / "d.so").chmod(0o600)
    own = filled(place / "own")
    _published(own, MEMBER, mode=0o700)

    def work() -> None:
        found = [opened(own, shared).get(key, ".so") for key in "abcd"]
        assert found == [b"a", None, None, None], found

    as_user(MEMBER, work)


@as_root
@pytest.mark.parametrize("case", ["parent", "sticky parent", "link", "unreadable"])
def test_path_that_others_may_have_made_is_left_out(place: Path, case: str) -> None:
    shared = filled(place / "above" / "team", a=b"a")
    _published(shared, TEAM)
    (place / "above").chmod(0o755)
    why = {
        "parent": "belongs to another user",
        "sticky parent": "others may write",
        "link": "is a link to",
        "unreadable": "Permission denied",
    }[case]
    named = shared
    if case == "parent":
        os.chown(place / "above", STRANGER, STRANGER)
    elif case == "sticky parent":
        (place / "above").chmod(0o1777)
    elif case == "unreadable":
        (shared / "kernels").chmod(0o711)
    else:
        named = place / "link"
        named.symlink_to(shared)
    own = filled(place / "own")
    _published(own, MEMBER, mode=0o700)

    def work() -> None:
        with pytest.warns(FallbackWarning, match=why):
            assert opened(own, named).get("a", ".so") is None

    as_user(MEMBER, work)


@as_root
def test_own_folder_below_a_sticky_one_is_used(place: Path) -> None:
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    shared = filled(place / "tmp" / "mine", a=b"a")
    _published(shared, MEMBER, mode=0o700)
    own = filled(place / "own")
    _published(own, MEMBER, mode=0o700)

    def work() -> None:
        assert opened(own, shared).get("a", ".so") == b"a"

    as_user(MEMBER, work)


# ---------------------------------------------------------------------------------- whole calls


def plus(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 3 + 2).sum(-1)


def test_entries_are_found_in_all_layers_and_after_an_eviction(tmp_path: Path) -> None:
    """Those of one function are numbered: own ones take other numbers than shared ones."""
    code = """
        import sys, torch, jitmagic
        from jitmagic.api import handle_of
        from tests.runtime.test_shared_caches import plus

        run = jitmagic.jit(plus)
        for kind in sys.argv[1].split():
            run(torch.ones(4, dtype=getattr(torch, kind)))
        stages = [stage.stage for record in handle_of(run).journal for stage in record.stages]
        print(stages.count("trace"))
    """

    def traces(own: str, kinds: str, shared: str = "") -> int:
        folders = {"JITMAGIC_CACHE_DIR": str(tmp_path / own), "JITMAGIC_SHARED_CACHES": shared}
        done = run_forked(code, kinds, JITMAGIC_PERSIST="1", **folders)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    team = str(tmp_path / "team")
    assert traces("team", "float32") == 1
    assert traces("own", "float64", team) == 1
    assert traces("own", "float32 float64", team) == 0
    assert traces("own", "float16", team) == 1
    kernels = tmp_path / "own" / "kernels"
    first, second = sorted(kernels.glob("*.entry"))
    assert (first.stem[-2:], second.stem[-2:]) == ("-1", "-2")
    first.unlink()
    assert traces("own", "float32 float16", team) == 0
    assert traces("own", "float64", team) == 1
    assert first.exists()


def test_second_user_compiles_nothing(tmp_path: Path, target: Any) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 3 + 2).sum(-1)

    def hits(**options: object) -> tuple[int, int]:
        run = jitmagic.jit(chain, options=options)
        torch.testing.assert_close(run(x), chain(x))
        (record,) = handle_of(run).journal
        return record.kernels, record.cache_hits

    x = torch.linspace(-2, 2, 96).reshape(4, 24)
    team, own = str(tmp_path / "team"), str(tmp_path / "own")
    assert hits(cache_dir=team) == (1, 0)
    assert hits(cache_dir=own, shared_caches=[team]) == (1, 1)
    assert [path.name for path in (tmp_path / "own" / "kernels").iterdir()] == []
    assert stat.S_IMODE((tmp_path / "team" / "kernels").stat().st_mode) == 0o700
