"""The kernel cache: private, atomic, verified, replaceable."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from jitmagic.errors import FallbackWarning
from jitmagic.runtime import private_files
from jitmagic.runtime.store import Store, content_key, open_store


def test_keys_do_not_run_together():
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("a") == content_key(b"a")


def test_a_file_is_found_again_and_a_damaged_one_is_not(tmp_path):
    store = Store(tmp_path)
    assert store.get("k", ".so") is None
    path = store.put("k", ".so", b"code")
    assert store.get("k", ".so") == b"code"
    path.write_bytes(b"harm")
    assert store.get("k", ".so") is None
    assert (store.hits, store.misses) == (1, 2)


def test_an_interrupted_build_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), Store(tmp_path).scratch() as folder:
        (folder / "half").write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers_agree(tmp_path):
    store = Store(tmp_path)
    data = b"x" * 10
    threads = [threading.Thread(target=store.put, args=("k", ".so", data)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("k", ".so") == data
    assert [path.name for path in tmp_path.iterdir()] == ["k.so"]


# ---------------------------------------------------------------------------------- who may write


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_what_is_made_is_private_under_every_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = open_store(str(tmp_path / "above" / "new"))
        path = store.put("k", ".so", b"code")
    finally:
        os.umask(before)
    for folder in (store.folder, store.folder.parent, tmp_path / "above"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store.get("k", ".so") == b"code"


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_others_may_write_to_or_above_is_not_trusted(tmp_path, depth, exists):
    folder = tmp_path / "a" / "b" / "kernels"
    folder.mkdir(parents=True)
    [folder, *folder.parents][depth].chmod(0o777)
    if not exists and depth:
        folder.rmdir()
    with pytest.warns(FallbackWarning, match="others may write"):
        store = open_store(str(folder.parent))
    assert store.folder != folder
    assert store.put("k", ".so", b"ok").read_bytes().startswith(b"ok")


def test_a_sticky_folder_may_stand_above_but_not_hold_kernels(tmp_path):
    sticky = tmp_path / "tmp"
    sticky.mkdir()
    sticky.chmod(0o1777)
    assert open_store(str(sticky / "mine")).folder == sticky / "mine" / "kernels"
    (sticky / "kernels").mkdir()
    (sticky / "kernels").chmod(0o1777)
    with pytest.warns(FallbackWarning, match="others may write"):
        open_store(str(sticky))


@pytest.mark.parametrize("is_own", [True, False])
def test_group_writable_folder_is_trusted_for_a_private_group(tmp_path, monkeypatch, is_own):
    """Distributions with a umask of 002 give each user a group."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o770)
    groups = frozenset({folder.stat().st_gid} if is_own else ())
    monkeypatch.setattr(private_files, "_own_groups", lambda user: groups)
    if is_own:
        assert open_store(str(tmp_path)).folder == folder
    else:
        with pytest.warns(FallbackWarning, match="others may write"):
            open_store(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["a", "a/b", "a/b/kernels"])
def test_folders_of_other_users_are_not_trusted(tmp_path, name):
    (tmp_path / "a" / "b" / "kernels").mkdir(parents=True)
    os.chown(tmp_path / name, 12345, 12345)
    with pytest.warns(FallbackWarning, match="belongs to another user"):
        open_store(str(tmp_path / "a" / "b"))


def test_symlink_is_checked_at_its_target(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_store(str(tmp_path / "link")).folder == tmp_path / "real" / "kernels"
    (tmp_path / "real").chmod(0o777)
    open_store.cache_clear()
    with pytest.warns(FallbackWarning, match="others may write"):
        open_store(str(tmp_path / "link"))


def _writable(path: Path) -> None:
    path.chmod(0o666)


def _given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _renamed(path: Path) -> None:
    Store(path.parent).put("other", ".so", b"other").rename(path)


@pytest.mark.parametrize("harm", [_writable, _given_away, _linked, _pipe, _renamed])
def test_file_of_another_user_is_replaced(tmp_path, harm):
    store = Store(tmp_path)
    harm(store.put("k", ".so", b"code"))
    assert store.get("k", ".so") is None
    store.put("k", ".so", b"code")
    assert store.get("k", ".so") == b"code"
    assert stat.S_ISREG((tmp_path / "k.so").lstat().st_mode)


# ------------------------------------------------------------------------------- what goes wrong


def test_an_unusable_folder_is_replaced_with_a_warning(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.warns(FallbackWarning, match="JITMAGIC_CACHE_DIR"):
        store = open_store(str(blocker))
    assert store.put("k", ".so", b"ok").read_bytes().startswith(b"ok")


def test_invalid_folder_name_warns_once():
    with pytest.warns(FallbackWarning, match="null byte"):
        store = open_store("a\0b")
    assert open_store("a\0b") is store


def test_read_only_folder_is_read_but_not_written(tmp_path, monkeypatch):
    """Simulate the system's refusal: for root nothing is read-only."""
    good = Store(tmp_path)
    good.put("old", ".so", b"old")

    def refuse(prefix: str, dir: Path | None = None) -> str:
        if dir == tmp_path:
            raise OSError(30, "Read-only file system")
        return real(prefix=prefix, dir=dir)

    real = __import__("tempfile").mkdtemp
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    store = Store(tmp_path)
    assert store.get("old", ".so") == b"old"
    with pytest.warns(FallbackWarning, match="Read-only file system"):
        store.put("new", ".so", b"new")
    store.put("newer", ".so", b"newer")  # a second warning would be an error
    assert store.get("new", ".so") == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["old.so"]


def test_a_folder_removed_meanwhile_is_made_again(tmp_path):
    store = open_store(str(tmp_path / "cache"))
    store.put("k", ".so", b"code")
    (store.folder / "k.so").unlink()
    store.folder.rmdir()
    store.folder.parent.rmdir()
    assert store.get("k", ".so") is None
    store.put("k", ".so", b"code")
    assert Store(store.folder).get("k", ".so") == b"code"


def test_folders_of_builds_that_were_killed_are_removed(tmp_path):
    """A child that dies without a word leaves its folder; one that lives keeps it."""
    store = Store(tmp_path)
    pid = os.fork()
    if pid == 0:
        with store.scratch():
            os._exit(0)  # like a kill: nothing is cleaned up
    os.waitpid(pid, 0)
    (dead,) = tmp_path.iterdir()
    with Store(tmp_path).scratch() as mine:
        assert not dead.exists()
        with Store(tmp_path).scratch() as other:
            assert mine.exists() and other.exists()
    assert list(tmp_path.iterdir()) == []


def test_folders_that_were_never_locked_are_removed_when_they_are_old(tmp_path):
    (tmp_path / "build-old").mkdir()
    (tmp_path / "build-new").mkdir()
    os.utime(tmp_path / "build-old", (0, 0))
    with Store(tmp_path).scratch():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["build-new"]


def test_clear_keeps_running_builds(tmp_path):
    store = Store(tmp_path)
    store.put("k", ".so", b"code")
    with store.scratch() as folder:
        store.clear()
        assert list(tmp_path.iterdir()) == [folder]
