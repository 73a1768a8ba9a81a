"""%autoreload 2 in a real kernel: what is tagged runs the code that was written last."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from .kernels import execute

nbformat = pytest.importorskip("nbformat")

FIRST = """
SCALE = 2

def g(x, k=1):
    return x * SCALE + k

def used_inside(x):
    return x + 1

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 5

class Holder:
    def method(self, x):
        return x * 7
"""
SECOND = """
SCALE = 3

def g(x, k=10, extra=100):
    return x * SCALE - k - extra

def used_inside(x):
    return x + 2

class Net(torch.nn.Module):
    def forward(self, x, k=6):
        return x * k

class Holder:
    def method(self, x):
        return x * 8
"""
HEAD = "import torch\nimport jitmagic\n"
DECORATED = "\n@jitmagic.jit\ndef decorated(x):\n    return x * SCALE\n"


def _write(path: Path, text: str, age: int) -> str:
    """A cell that writes the module; autoreload looks for a later time than it saw last."""
    body = HEAD + text + DECORATED
    return f"""
        import os, pathlib, time
        pathlib.Path({str(path)!r}).write_text({body!r})
        os.utime({str(path)!r}, (time.time() + {age}, time.time() + {age}))
    """


def test_tagged_functions_and_modules_follow_a_reload(tmp_path):
    path = tmp_path / "mymod.py"
    cells = [
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})",
        _write(path, FIRST, 0),
        "%load_ext autoreload\n%autoreload 2\nimport torch, jitmagic, mymod",
        """
        def outer(x):
            return mymod.used_inside(x) * 2
        tagged = [jitmagic.jit(one) for one in (mymod.g, outer, mymod.Net(), mymod.Holder().method)]
        x = torch.ones(2)
        results = lambda: [one(x)[0].item() for one in (*tagged, mymod.decorated)]
        results()
        assert results() == [3, 4, 5, 7, 2], results()
        """,
        _write(path, SECOND, 10),
        """
        assert results() == [-107, 6, 6, 8, 3], results()
        assert results() == [-107, 6, 6, 8, 3], results()
        assert tagged[0](x, 0, 0)[0] == 3 and tagged[2](x, k=2)[0] == 2
        states = {str(jitmagic.api.handle_of(one).outcome) for one in (*tagged, mymod.decorated)}
        assert states == {"compiled"}, states
        """,
        _write(path, FIRST, 20),
        "assert results() == [3, 4, 5, 7, 2], results()",
    ]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in cells]
    execute(notebook)
