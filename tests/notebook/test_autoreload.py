"""%autoreload in a real kernel: what is tagged runs the code that was written last."""

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


MODES = {"1": "%autoreload 1\n%aimport mymod", "2": "%autoreload 2"}


@pytest.mark.parametrize("mode", MODES)
def test_tagged_functions_and_modules_follow_a_reload(tmp_path, mode):
    path = tmp_path / "mymod.py"
    cells = [
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})",
        _write(path, FIRST, 0),
        f"%load_ext autoreload\n{MODES[mode]}\nimport torch, jitmagic, mymod",
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


IN_CELLS = """
%%compile
import mymod
def outer(x):
    return mymod.used_inside(x) * 2
class Owner:
    def method(self, x):
        return mymod.g(x)
def through(net, x):
    return net(x)
x = torch.ones(2)
net = mymod.Net()
first = outer(x), Owner().method(x), through(net, x)
"""
RESULTS = """
results = lambda: [outer(x)[0], Owner().method(x)[0], through(net, x)[0], mymod.decorated(x)[0]]
assert results() == [4, 3, 5, 2], results()
"""
TOP_LEVEL = "%%compile\nboth = outer(x)[0], mymod.decorated(x)[0]"


@pytest.mark.parametrize("mode", MODES)
def test_compiled_cells_follow_a_reload_of_what_they_call(tmp_path, mode):
    path = tmp_path / "mymod.py"
    cells = [
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})",
        _write(path, FIRST, 0),
        f"%load_ext autoreload\n{MODES[mode]}\n%load_ext jitmagic\nimport torch, jitmagic",
        IN_CELLS,
        RESULTS,
        TOP_LEVEL,
        _write(path, SECOND, 10),
        "assert results() == [6, -107, 6, 3], results()",
        TOP_LEVEL,
        "assert both == (6, 3), both",
        _write(path, FIRST, 20),
        "assert results() == [4, 3, 5, 2], results()",
        TOP_LEVEL,
        "assert both == (4, 2), both",
    ]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in cells]
    execute(notebook)
