"""explain in each of its states looks as it did, light and dark, and is accessible.

--update-golden stores how it looks now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.shots import pictures_differ
from tests.browser.states import STATES
from tests.processes import run_python

STORED = Path(__file__).parent / "stored"
THEMES = {"light": ("#ffffff", "#1a1a1a"), "dark": ("#111111", "#dddddd")}
_TOLERANCE = 0.01  # of the pixels


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("states")
    code = "import pathlib; from tests.browser.states import written"
    done = run_python(f"{code}; written(pathlib.Path({str(folder)!r}))")
    assert done.returncode == 0, done.stderr
    return {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in STATES}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=THEMES)
def theme(request: Any) -> str:
    name: str = request.param
    return name


def opened(browser: Any, html: str, theme: str) -> Any:
    paper, ink = THEMES[theme]
    page = browser.new_page(viewport={"width": 980, "height": 900}, color_scheme=theme)
    style = f"margin:16px;background:{paper};color:{ink}"
    page.set_content(
        f"<!doctype html><html lang='en'><title>state</title><body style='{style}'>{html}</body>"
    )
    return page


@pytest.mark.parametrize("state", STATES)
def test_a_state_looks_as_it_did(
    browser: Any, pages: dict[str, str], state: str, theme: str, update_golden: bool
) -> None:
    page = opened(browser, pages[state], theme)
    path = STORED / f"explain_{state}.{theme}.png"
    seen = page.locator(".jitmagic").first.screenshot(animations="disabled")
    if update_golden:
        path.write_bytes(seen)
    assert path.exists(), "no screenshot is stored: --update-golden stores one"
    differs = pictures_differ(page, seen, path.read_bytes())
    if differs > _TOLERANCE:
        path.with_suffix(".seen.png").write_bytes(seen)
    page.close()
    assert differs <= _TOLERANCE


@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_serious_in_any_state(
    browser: Any, pages: dict[str, str], state: str, theme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = opened(browser, pages[state], theme)
    for fold in page.locator("details").all():
        fold.evaluate("fold => fold.open = true")
    found = Axe().run(page, context=".jitmagic").response["violations"]
    page.close()
    serious = [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []


def test_states_look_different(browser: Any, pages: dict[str, str]) -> None:
    stored = [(STORED / f"explain_{state}.light.png").read_bytes() for state in STATES]
    page = browser.new_page()
    for left, right in zip(stored, stored[1:], strict=False):
        assert pictures_differ(page, left, right) > _TOLERANCE
    page.close()
