"""The kernel cache: private, atomic, verified, replaceable."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from jitmagic.errors import FallbackWarning
from jitmagic.runtime.store import Store, content_key, open_store


def test_keys_do_not_run_together():
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("a") == content_key(b"a")


def test_a_file_is_found_again_and_a_damaged_one_is_not(tmp_path):
    store = Store(tmp_path)
    assert store.get("k", ".so") is None
    path = store.put("k", ".so", lambda out: out.write_bytes(b"code"))
    assert store.get("k", ".so") == path
    path.write_bytes(b"harm")
    assert store.get("k", ".so") is None
    assert (store.hits, store.misses) == (1, 2)


def test_an_interrupted_build_leaves_nothing(tmp_path):
    def build(out):
        out.write_bytes(b"half")
        raise KeyboardInterrupt

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.put("k", ".so", build)
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers_agree(tmp_path):
    store = Store(tmp_path)
    threads = [
        threading.Thread(
            target=store.put, args=("k", ".so", lambda out: out.write_bytes(b"x" * 10))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("k", ".so").read_bytes() == b"x" * 10


def test_the_folder_is_private(tmp_path):
    store = open_store(str(tmp_path / "new"))
    assert stat.S_IMODE(os.stat(store.folder).st_mode) == 0o700


def test_a_folder_open_to_others_is_not_trusted(tmp_path):
    folder = tmp_path / "shared" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.warns(FallbackWarning, match="others may write"):
        store = open_store(str(tmp_path / "shared"))
    assert store.folder != folder


def test_an_unusable_folder_is_replaced_with_a_warning(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.warns(FallbackWarning, match="JITMAGIC_CACHE_DIR"):
        store = open_store(str(blocker))
    assert store.put("k", ".so", lambda out: out.write_bytes(b"ok")).read_bytes() == b"ok"
