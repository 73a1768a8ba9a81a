"""The progress line in a notebook: it shows where the cell compiles, and nothing is left of it."""

from __future__ import annotations

import pytest

from jitmagic.progress import _Display
from tests.test_progress import SLOW

from .kernels import execute

PRINTING = """\
def f(x):
    print('in f')
    return x + 1
f(torch.ones(2)).tolist()
"""


def test_it_shows_in_a_notebook_and_vanishes() -> None:
    nbformat = pytest.importorskip("nbformat")
    make = nbformat.v4.new_code_cell
    cells = [
        make(f"{SLOW}\n%load_ext jitmagic"),
        make(f"%%compile --backend slow\n{PRINTING}"),
        make("%%capture caught\njitmagic.jit(lambda x: x * 2, backend=slow)(torch.ones(2))"),
        make("assert caught.stdout == '' and caught.stderr == '', caught.stderr"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute(notebook)
    # The notice that print() runs as plain Python is meant to stay.
    outputs = [o for o in cells[1]["outputs"] if "plain Python" not in o.get("text", "")]
    assert [(o["name"], o["text"]) for o in outputs if o["output_type"] == "stream"] == [
        ("stdout", "in f\n")
    ]
    values = [o["data"] for o in outputs if "data" in o]
    assert values == [{}, {"text/plain": "[2.0, 2.0]"}]  # an emptied display has no data
    assert "compiling" not in nbformat.writes(notebook).replace(SLOW, "")
    assert "jitmagic" not in str(outputs)


def test_a_display_is_emptied_and_shown_again_in_the_same_cell(monkeypatch) -> None:
    sent: list[tuple[str, bool, dict[str, str]]] = []

    class Publisher:
        def publish(self, data, metadata, transient, update) -> None:
            sent.append((transient["display_id"], update, data))

    class Shell:
        execution_count = 3
        display_pub = Publisher()

    shell, display = Shell(), _Display()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert [display.show(text) for text in ("abc", "", "de", "")] == [3, 0, 2, 0]
    shell.execution_count = 4
    assert [display.show(text) for text in ("", "f", "")] == [0, 1, 0]
    assert sent == [
        ("jitmagic-progress-3", False, {"text/plain": "abc"}),
        ("jitmagic-progress-3", True, {}),
        ("jitmagic-progress-3", True, {"text/plain": "de"}),
        ("jitmagic-progress-3", True, {}),
        ("jitmagic-progress-4", False, {"text/plain": "f"}),
        ("jitmagic-progress-4", True, {}),
    ]
