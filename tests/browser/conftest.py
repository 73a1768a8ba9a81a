"""One JupyterLab and one Chromium for all tests here, with a notebook whose cells have run.

`make browser` runs them, by themselves: playwright keeps an event loop running in its process, in
which tests of async code fail. Elsewhere they are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.lab import Lab, opened, running

_PACKAGES = ("jupyterlab", "playwright", "axe_playwright_python")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where the browser is."""
    if not os.environ.get("JITMAGIC_BROWSER"):
        pytest.skip("run by make browser")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    path = shutil.which("chromium")
    if path is None:
        missing.append("chromium")
    if missing or path is None:
        pytest.fail(f"not installed: {', '.join(missing)}")
    return path


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("lab")
    with running(folder) as address:
        yield address


@pytest.fixture(scope="session")
def lab(chromium: str, server: str) -> Iterator[Lab]:
    with opened(chromium, server) as lab:
        yield lab


@pytest.fixture(params=["Light", "Dark"])
def theme(request: Any) -> str:
    name: str = request.param
    return name


@pytest.fixture
def themed(theme: str, lab: Lab) -> Iterator[Lab]:
    lab.set_theme(f"JupyterLab {theme}")
    yield lab
    lab.set_theme("JupyterLab Light")
