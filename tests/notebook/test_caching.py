"""%jit_cache: the cache on disk from a notebook."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython")
from IPython.core.error import UsageError

import jitmagic
from jitmagic.artifact.entry import FORMAT
from jitmagic.runtime.store import content_key, open_store


@pytest.fixture
def filled(loaded: Any, tmp_path: Path, monkeypatch: Any) -> Any:
    """The shell, a cache with a kernel and an entry, and a compiled function `step`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JITMAGIC_CACHE_DIR", str(tmp_path / "cache"))
    store = open_store(str(tmp_path / "cache"))
    store.put(content_key("a"), ".so", b"code")
    document = {"format": FORMAT, "header": {"name": "train"}}
    store.put(content_key("b") + "-0", ".entry", zlib.compress(json.dumps(document).encode()))
    loaded.run_cell("import torch, jitmagic\nx = torch.ones(4)")
    loaded.run_cell("@jitmagic.jit\ndef step(x):\n    return torch.relu(x * 2 + 1)\n_ = step(x)")
    return loaded


def shown(shell: Any, line: str) -> str:
    return str(shell.run_line_magic("jit_cache", line))


def test_commands(filled: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert shown(filled, "").startswith("jitmagic cache: 3 files")
    assert shown(filled, "list").startswith("3 files")
    assert shown(filled, "list --kind entry").startswith("1 file")
    assert shown(filled, "bundle all.jmz").startswith("all.jmz: 3 files")
    assert shown(filled, "bundle step.jmz step").startswith("step.jmz: 1 file")
    assert shown(filled, "bundle 'two words.jmz' step train").startswith("two words.jmz: 2 files")
    assert shown(filled, "clear --older-than 1h") == "removed 0 files, 0 B"
    assert shown(filled, "clear --kind entry").startswith("removed 1 file")
    assert shown(filled, "unbundle all.jmz").startswith("stored 1 file")
    assert shown(filled, "clear").startswith("removed 3 files")
    assert shown(filled, "unbundle step.jmz").startswith("stored 1 file")
    assert filled.run_line_magic("jit_cache", "") is jitmagic.cache


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("empty", "invalid choice: 'empty'"),
        ("bundle", "takes the path"),
        ("unbundle", "takes the path"),
        ("unbundle a.jmz b.jmz", "takes the path"),
        ("unbundle a.jmz", "No such file"),
        ("bundle x.jmz stepp", "no cached function or key 'stepp'"),
        ("list 3", "'3' is one argument too many"),
        ("list --older-than 3d", "--older-than is an option of other commands"),
        ("--kind entry", "--kind is an option of other commands"),
        ("clear --kind entri", "did you mean 'entry'"),
        ("clear --older-than soon", "30 days"),
        ("clear --older 3d", "did you mean --older-than"),
    ],
)
def test_wrong_lines_change_nothing(filled: Any, line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        filled.run_line_magic("jit_cache", line)
    assert len(jitmagic.cache.list()) == 3
    assert not list(tmp_path.glob("*.jmz"))


def test_unloading_removes_the_magic(shell: Any) -> None:
    shell.run_line_magic("load_ext", "jitmagic")
    shell.run_line_magic("unload_ext", "jitmagic")
    assert "jit_cache" not in shell.magics_manager.magics["line"]
