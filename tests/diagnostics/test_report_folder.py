"""report() and its folder: what is replaced, what is left alone, what an early end leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitmagic
from jitmagic.diagnostics import folder as folders

from .test_issue_report import broken, files_in, inferred, once, plain


@pytest.fixture
def tagged() -> Any:
    return once(inferred, plain())()


def test_a_report_replaces_its_own(tagged: Any, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "out"
    jitmagic.report(root, tagged, once(broken, plain())())
    assert len(list((root / "capsules").iterdir())) == 3
    (root / "notes.txt").write_text("mine")
    made = jitmagic.report(root, tagged)
    assert [p.name for p in (root / "capsules").iterdir()] == ["01_inferred"]
    assert (root / "notes.txt").read_text() == "mine"
    names = set(files_in(root)) - {"notes.txt", folders.MANIFEST}
    assert json.loads((root / folders.MANIFEST).read_text())["files"] == sorted(names)
    assert made.folder == root


def test_an_empty_folder_and_the_current_one(
    tagged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = jitmagic.report(".", tagged)
    assert Path.cwd() == made.folder == tmp_path
    assert jitmagic.report("", tagged).page.exists()


def make_file(root: Path) -> None:
    root.write_text("mine")


def make_full(root: Path) -> None:
    root.mkdir()
    (root / "thesis.txt").write_text("mine")


def make_like(root: Path) -> None:
    make_full(root)
    (root / folders.MANIFEST).write_text('{"kind": "another", "files": ["thesis.txt"]}')


def make_outside(root: Path) -> None:
    make_full(root)
    told = {"kind": "jitmagic report", "files": ["../precious.txt"]}
    (root / folders.MANIFEST).write_text(json.dumps(told))


def make_torn(root: Path) -> None:
    make_full(root)
    (root / folders.MANIFEST).write_bytes(b"\xff{")


def make_dangling(root: Path) -> None:
    root.symlink_to(root.parent / "nowhere")


@pytest.mark.parametrize(
    "make", [make_file, make_full, make_like, make_outside, make_torn, make_dangling]
)
def test_folder_with_other_files_is_refused_and_unchanged(
    make: Callable[[Path], None], tagged: Any, tmp_path: Path
) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    make(tmp_path / "out")
    before = files_in(tmp_path)
    with pytest.raises(jitmagic.ReportError, match="hint: name another folder"):
        jitmagic.report(tmp_path / "out", tagged)
    assert files_in(tmp_path) == before


def test_other_file_at_a_capsule_path_is_refused(tagged: Any, tmp_path: Path) -> None:
    root = jitmagic.report(tmp_path / "out", tagged).folder
    more = once(broken, plain())()
    names = {p.name for p in jitmagic.report(tmp_path / "look", tagged, more).capsules}
    theirs = root / "capsules" / sorted(names)[1] / "replay.py"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    before = files_in(root)
    with pytest.raises(jitmagic.ReportError, match="replay.py was not written by a report"):
        jitmagic.report(root, tagged, more)
    assert files_in(root) == before


def test_a_folder_that_cannot_be_written(
    tagged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(jitmagic.ReportError, match="hint: name a folder that you may write to"):
        jitmagic.report(tmp_path / "file" / "below", tagged)
    root = jitmagic.report(tmp_path / "out", tagged).folder
    before = files_in(tmp_path)
    written = []

    def full(path: Path, text: str) -> None:
        written.append(path)
        if len(written) > 5:
            raise OSError(28, "No space left on device")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(folders, "write_text", full)
    for place in (root, tmp_path / "new" / "deep"):
        written.clear()
        with pytest.raises(jitmagic.ReportError, match="No space left on device"):
            jitmagic.report(place, once(broken, plain())())
    assert files_in(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "out"]
    assert not [p for p in root.iterdir() if p.name.startswith(".")]


def test_interrupted_report_can_be_replaced(
    tagged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its files, where no error of the disk's is expected."""
    root = jitmagic.report(tmp_path / "out", tagged).folder
    replace, left = os.replace, [4]

    def interrupted(source: Any, target: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(folders.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jitmagic.report(root, once(broken, plain())())
    monkeypatch.undo()
    jitmagic.report(root, tagged)
    assert [p.name for p in (root / "capsules").iterdir()] == ["01_inferred"]
