"""The pages of docs/: every block runs, every page is listed, every link leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.kernels import execute
from tests.processes import ROOT

PAGES = ROOT / "docs" / "pages"
HOOKS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
WRITTEN = sorted(PAGES.glob("*.md"))
MADE = {"breaks.md"}


def _programs(language: str) -> list[Path]:
    return [page for page in WRITTEN if f"```{language}\n" in page.read_text()]


@pytest.mark.parametrize("page", _programs("python"), ids=lambda page: page.stem)
def test_every_block_runs(page: Path) -> None:
    text = page.read_text()
    results = HOOKS["outputs"](text, page.stem)
    assert len(results) == text.count("```python")
    assert "Traceback" not in "".join(results)


@pytest.mark.parametrize("page", _programs("ipython"), ids=lambda page: page.stem)
def test_every_cell_runs(page: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = re.findall(r"^```ipython\n(.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    execute(notebook)
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_a_block_that_fails_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        HOOKS["outputs"]("```python\n1 / 0\n```\n", "failing")


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"(\w+\.md)$", (ROOT / "docs" / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({page.name for page in WRITTEN} | MADE)


def test_links_between_pages_lead_to_pages() -> None:
    for page in WRITTEN:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert target in MADE or (PAGES / target).is_file(), f"{page.name}: {target}"


def test_each_reason_for_a_break_has_a_section() -> None:
    text = HOOKS["breaks_page"]()
    assert text.count("\n## ") == text.count("It says: ")
    assert "## Tensor branch\n\nIt says: `a branch depends on tensor data (<what>)`" in text
