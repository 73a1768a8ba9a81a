"""The pages of docs/: every block runs, every page is listed, every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic import options
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


def test_each_option_has_a_section_with_its_default() -> None:
    text = (PAGES / "options.md").read_text()
    told = re.findall(r"^## (\w+)\n\nDefault: `(.*?)`\.", text, re.MULTILINE)
    known = [(field.name, field.default) for field in fields(jitmagic.Options)]
    assert [(name, ast.literal_eval(default)) for name, default in told] == known


def _sections(page: str) -> dict[str, str]:
    _, *parts = re.split(r"^## (.*)\n", (PAGES / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _rows(section: str) -> list[list[set[str]]]:
    """Of each row of a table what stands in backticks, by column; without arguments."""
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return [[set(re.findall(r"`\"?([\w.]+)", cell)) for cell in row] for row in rows]


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page is of torch 2.13")
def test_what_torch_compile_has_is_named_beside_ours() -> None:
    calls, functions, _, given, config, *_ = _sections("from_torch_compile.md").values()
    arguments = set(inspect.signature(torch.compile).parameters) - {"model"}
    assert arguments <= set(re.findall(r"\w+", calls))
    assert set(torch.compiler.__all__) - {"compile"} <= set(re.findall(r"\w+", functions))
    assert options._TORCH_NAMES.keys() - {"cache_size_limit"} <= set.union(
        *(row[0] for row in _rows(given))
    )
    theirs = importlib.import_module("torch._dynamo.config")._config
    assert {name for row in _rows(config) for name in row[0]} <= theirs.keys()


def test_names_of_torch_logs_are_told_as_they_are_understood() -> None:
    rows = _rows(_sections("from_torch_compile.md")["Logs"])
    same, *others = rows
    told = {name: {name} for name in same[0]} | {n: right for left, right in others for n in left}
    registry = torch._logging._internal.log_registry
    torchs = {*registry.log_alias_to_log_qnames, *registry.artifact_names}
    known = {name: set(jitmagic.logs(name)) for name in sorted(torchs)}
    jitmagic.logs(None)
    assert {name: ours for name, ours in known.items() if ours} == told


def test_links_between_pages_lead_to_pages() -> None:
    for page in WRITTEN:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)  # no code
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert target in MADE or (PAGES / target).is_file(), f"{page.name}: {target}"


def test_each_reason_for_a_break_has_a_section() -> None:
    text = HOOKS["breaks_page"]()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(headings) == len(set(headings)) == text.count("It says: ")
    branch = (
        "## A branch that depends on tensor values\n\nIt says: `a branch depends on tensor data"
    )
    assert branch in text
