"""report() of a path that ends in .html: one page, with the files of the capsules inside."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import jitmagic
from jitmagic.diagnostics import folder as folders

from .test_issue_report import broken, files_in, inferred, once, plain
from .test_report_folder import make_dangling, make_file, make_full


@pytest.fixture
def tagged() -> Any:
    return once(inferred, plain())()


class Folded(HTMLParser):
    """The texts of a page's <pre> by the summary that they fold under."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.links: list[str] = []
        self._tag = self._summary = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._tag = tag
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag == "summary":
            self._summary = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "summary":
            self._summary += data
        elif self._tag == "pre":
            self.texts[self._summary] = self.texts.get(self._summary, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


@pytest.mark.parametrize("name", ["all.html", "ALL.HTM"])
def test_a_path_of_a_page_is_one_file(name: str, tagged: Any, tmp_path: Path) -> None:
    file = tmp_path / "deep" / name
    made = jitmagic.report(str(file), tagged)
    assert list(files_in(tmp_path)) == [f"deep/{name}"]
    assert (made.page, made.folder, made.capsules) == (file, file.parent, ())
    assert str(made) == f"1 function, 1 capsule: {file}"
    page = Folded()
    page.feed(file.read_text())
    assert all(link.startswith("data:") for link in page.links)
    capsule = jitmagic.report(tmp_path / "out", tagged).capsules[0]
    for path in capsule.iterdir():
        assert page.texts[path.name] == path.read_text()


def test_a_page_replaces_its_own(tagged: Any, tmp_path: Path) -> None:
    file = tmp_path / "all.html"
    jitmagic.report(file, tagged, once(broken, plain())())
    jitmagic.report(file, tagged)
    assert "02_" not in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("make", [make_file, make_full, make_dangling, Path.mkdir])
def test_other_html_file_is_refused_and_unchanged(
    make: Callable[[Path], None], tagged: Any, tmp_path: Path
) -> None:
    make(tmp_path / "all.html")
    before = files_in(tmp_path)
    with pytest.raises(jitmagic.ReportError, match="hint: name another file that ends in .html"):
        jitmagic.report(tmp_path / "all.html", tagged)
    assert files_in(tmp_path) == before


def test_a_page_that_cannot_be_written(
    tagged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "all.html"
    jitmagic.report(file, tagged)
    before = files_in(tmp_path)
    with pytest.raises(jitmagic.ReportError, match="hint: name a file that you may write"):
        jitmagic.report(file / "below.html", tagged)

    def full(path: Path, text: str) -> None:
        path.write_text(text[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_text", full)
    for place in (file, tmp_path / "new" / "all.html"):
        with pytest.raises(jitmagic.ReportError, match="No space left on device"):
            jitmagic.report(place, once(broken, plain())())
    assert files_in(tmp_path) == before
    assert list(tmp_path.iterdir()) == [file]
