"""The progress line in a notebook: it shows where the cell compiles, and nothing is left of it."""

from __future__ import annotations

import pytest

from tests.test_progress import SLOW, screen

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
    outputs = cells[1]["outputs"]
    streams = {o["name"]: "" for o in outputs if o["output_type"] == "stream"}
    for output in outputs:
        if output["output_type"] == "stream":
            streams[output["name"]] += output["text"]
    assert streams["stdout"] == "in f\n"
    assert "jitmagic: compiling <cell>: backend" in streams["stderr"]
    assert screen(streams["stderr"]) == [""]
    assert [o["data"]["text/plain"] for o in outputs if "data" in o] == ["[2.0, 2.0]"]
