"""Front ends that are not JupyterLab, by what each of them lets through of an output.

Colab shows it in a sandboxed frame, VS Code in a page whose policy refuses every resource, GitHub
without styles and scripts, a phone on 400 pixels. None of them is asked here: their rules are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.shown import NAMES, shown_outputs
from tests.notebook.kernels import execute
from tests.processes import run_python


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    """As a notebook stores them."""
    return {name: one._repr_html_() for name, one in shown_outputs().items()}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """What it asks for and complains of is in `page.told`."""
    page = browser.new_page(viewport={"width": 900, "height": 900})
    page.told = []
    page.on("console", lambda message: page.told.append(message.text))
    page.on("pageerror", lambda error: page.told.append(str(error)))
    page.on("request", lambda request: page.told.append(request.url))
    yield page
    page.close()


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FRAMES = {
    "sandboxed frame": "<iframe sandbox srcdoc='{}' style='width:100%;height:100%'></iframe>",
    "policy": f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">' + "{}",
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("name", NAMES)
def test_an_output_works_where_nothing_may_be_loaded_or_run(
    page: Any, outputs: dict[str, str], name: str, kind: str
) -> None:
    html = outputs[name] if kind == "policy" else escape(outputs[name], quote=True)
    page.set_content(f"<!doctype html>{FRAMES[kind].format(html)}")
    frame = page.frames[-1]
    assert len(page.frames) == (1 if kind == "policy" else 2)
    assert frame.locator("body").inner_text().strip() or frame.locator("img").count()
    for fold in frame.locator("details:not([open]) > summary").all():
        if fold.is_visible():
            fold.click()
    assert [told for told in page.told if not told.startswith(("about:", "data:"))] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "picture"])
def test_an_output_is_readable_without_styles(
    page: Any, outputs: dict[str, str], name: str
) -> None:
    html = re.sub(r"<style>.*?</style>", "", outputs[name], flags=re.DOTALL)
    html = re.sub(r"""\s(style|class)=('[^']*'|"[^"]*")""", "", html)
    assert "style=" not in html
    assert "class=" not in html
    page.set_content(f"<!doctype html>{html}")
    text = page.locator("body").inner_text()
    if name == "explain":
        lines = [line[line.index("x = ") - 8 :] for line in text.splitlines() if "x = t" in line]
        assert lines[0].startswith("        x = torch.relu(x * y + 2)")  # as it is indented
        assert re.search(r"eager +compiled +kernels", text, re.MULTILINE)
    if name == "why":
        assert re.search(r"\n\s\svariant \d: .*\n\s{4}needed by", text)


@pytest.mark.parametrize("name", NAMES)
def test_an_output_fits_a_narrow_screen(page: Any, outputs: dict[str, str], name: str) -> None:
    """What is wider scrolls by itself."""
    page.set_viewport_size({"width": 400, "height": 800})
    page.set_content(f"<!doctype html><body>{outputs[name]}</body>")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


CELLS = (
    "import torch, jitmagic\n%load_ext jitmagic\nsize = 3",
    "%%compile --explain\ndef step(x):\n    return torch.relu(x) * 2\nz = step(torch.ones(size))",
    "assert z.tolist() == [2.0] * size\nstep",
)


def test_papermill_runs_a_notebook(chromium: str, tmp_path: Path) -> None:
    """With a parameter, and with everything shown that an interactive run shows."""
    import nbformat
    import papermill

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python"}
    notebook.metadata["kernelspec"]["display_name"] = "Python 3"
    nbformat.write(notebook, tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"size": 5}, progress_bar=False, cwd=tmp_path
    )
    shown = [out for cell in done.cells for out in cell.get("outputs", ())]
    assert any("jitmagic explain" in str(out.get("data", {}).get("text/html")) for out in shown)
    assert not [out for out in shown if out["output_type"] == "error"]
    execute(nbformat.read(tmp_path / "out.ipynb", as_version=4), tmp_path)


MARIMO = """
import marimo
app = marimo.App()

@app.cell
def _():
    import torch, jitmagic
    return jitmagic, torch

@app.cell
def _(jitmagic, torch):
    @jitmagic.jit
    def step(x):
        y = torch.relu(x) * 2
        print("between")
        return y.sum()
    return (step,)

@app.cell
def _(jitmagic, step, torch):
    results = [step(torch.ones(3)).item() for _ in range(3)]
    jitmagic.explain(step)
    return (results,)

if __name__ == "__main__":
    outputs, names = app.run()
    assert names["results"] == [6.0] * 3
    text = "".join(str(getattr(one, "text", one)) for one in outputs if one is not None)
    assert "step is " in text
    assert "y = torch.relu(x) * 2" in text
"""


def test_marimo_runs_a_decorated_function(chromium: str, tmp_path: Path) -> None:
    """As a script, where its cells run in order; %% magics are IPython's."""
    (tmp_path / "book.py").write_text(textwrap.dedent(MARIMO))
    done = run_python(
        f"import runpy\nrunpy.run_path({str(tmp_path / 'book.py')!r}, {{}}, '__main__')"
    )
    assert done.returncode == 0, done.stderr
