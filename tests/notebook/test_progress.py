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
        make(f"%%compile --quiet --backend slow\n{PRINTING}"),
        make("jitmagic.jit(lambda x: x * 3, backend=slow)(torch.ones(2)).tolist()"),
        make(
            "print('before')\njitmagic.jit(lambda x: x * 4, backend=slow)(torch.ones(2)).tolist()"
        ),
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
    # An emptied display has no data: print() stands before it, so that nothing can be cleared.
    assert values == [{}, {"text/plain": "[2.0, 2.0]"}]
    (value,) = cells[2]["outputs"]
    assert value["data"] == {"text/plain": "[3.0, 3.0]"}
    printed, emptied, value = cells[3]["outputs"]
    assert (printed["text"], emptied["data"]) == ("before\n", {})
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
    display.show("built meanwhile")
    shell.execution_count = 5  # the cell has ended
    display.show("built")
    display.begin_cell()
    shell.execution_count = 6
    display.show("g")
    shell.execution_count = 7
    display.show("")
    assert sent[6:] == [
        ("jitmagic-progress-4", True, {"text/plain": "built meanwhile"}),
        ("jitmagic-progress-4", True, {"text/plain": "built"}),
        ("jitmagic-progress-4", True, {}),
        ("jitmagic-progress-6", False, {"text/plain": "g"}),
        ("jitmagic-progress-6", True, {}),
    ]
    del sent[6:]
    assert sent == [
        ("jitmagic-progress-3", False, {"text/plain": "abc"}),
        ("jitmagic-progress-3", True, {}),
        ("jitmagic-progress-3", True, {"text/plain": "de"}),
        ("jitmagic-progress-3", True, {}),
        ("jitmagic-progress-4", False, {"text/plain": "f"}),
        ("jitmagic-progress-4", True, {}),
    ]


def test_only_a_cell_that_shows_nothing_else_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class Publisher:
        class session:
            message_count = 5

        def publish(self, data, metadata, transient, update) -> None:
            self.session.message_count += 1
            sent.append("update" if update else "display")

        def clear_output(self) -> None:
            self.session.message_count += 1
            sent.append("clear")

    class Shell:
        execution_count = 3
        display_pub = Publisher()

    shell, display = Shell(), _Display()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)

    def wait(*between: int) -> list[str]:
        sent.clear()
        for text, others in zip(("abc", "de", ""), (*between, 0), strict=True):
            display.show(text)
            Publisher.session.message_count += others
        return list(sent)

    assert wait(0, 0) == ["display", "update", "update"]  # no cell has begun: who knows
    shell.execution_count = 4
    display.begin_cell()
    assert wait(0, 0) == wait(0, 0) == ["display", "update", "clear"]
    assert wait(0, 1) == ["display", "update", "update"]  # something else was shown meanwhile
    assert wait(0, 0) == ["update", "update", "update"]
    shell.execution_count = 5
    display.begin_cell()
    Publisher.session.message_count += 1  # and here before
    assert wait(0, 0) == ["display", "update", "update"]
