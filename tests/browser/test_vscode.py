"""What people see in VS Code. Skipped where code-server is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import CELLS
from tests.browser.vscode import Workbench, command, executed, opened_in_code, serving

THEMES = ["Default Light Modern", "Default Dark Modern", "Default High Contrast"]
SHOWN = [
    "compiled step as part of this cell in",
    "broken is not measured yet",
    "graph break: print() writes output",
    "compiled costly as part of this cell in",
    "step: compiled as part of",  # the card
    "speed",  # the table of %compile_status
    "bitwise equal to eager's",
]


@pytest.fixture(scope="module")
def folder(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if command() is None:
        pytest.skip("code-server is not installed: tests/README.md says how")
    folder: Path = tmp_path_factory.mktemp("code") / "book"
    folder.mkdir()
    executed(CELLS, folder / "tour.ipynb")
    return folder


@pytest.fixture(scope="module", params=THEMES)
def bench(request: Any, chromium: str, folder: Path) -> Iterator[Workbench]:
    from playwright.sync_api import sync_playwright

    name = command()
    assert name is not None
    with serving(name, folder, request.param) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with opened_in_code(browser, address, "tour.ipynb") as bench:
            yield bench
        browser.close()


def test_outputs_are_shown_and_nothing_is_red(bench: Workbench) -> None:
    text = bench.frame.locator("#container").inner_text()
    assert [one for one in SHOWN if one not in text] == []
    assert bench.frame.locator(".output-stream.error, .traceback, .output-stderr").count() == 0


def test_no_output_asks_outside_or_fails(bench: Workbench) -> None:
    assert bench.outside() == []
    assert bench.errors == []


def test_a_click_on_a_line_shows_its_code(bench: Workbench) -> None:
    line = bench.frame.locator(".jitmagic details.line > summary").filter(has_text="costly(x)")
    line.first.click()
    kernel = line.first.locator("xpath=..").locator(".kernel > summary").first
    kernel.click()
    code = kernel.locator("xpath=..").locator("pre").first
    assert code.is_visible()
    assert "extern" in code.inner_text()
    line.first.click()
    assert not code.is_visible()


def test_pictures_are_drawn(bench: Workbench) -> None:
    picture = bench.frame.get_by_role("img", name="step")
    assert picture.count() == 1
    assert picture.evaluate("image => image.naturalWidth") > 50


def test_every_line_is_legible(bench: Workbench) -> None:
    """Contrast as axe measures it, on the yellow of the dearest line too."""
    from axe_playwright_python.sync_playwright import Axe

    folds = bench.frame.locator(".jitmagic details")
    folds.evaluate_all("folds => folds.forEach(fold => { fold.open = true })")
    found = Axe().run(bench.frame, context=".output", options={"runOnly": ["color-contrast"]})
    nodes = [node for rule in found.response["violations"] for node in rule["nodes"]]
    assert [(node["html"][:120], node["failureSummary"]) for node in nodes] == []
