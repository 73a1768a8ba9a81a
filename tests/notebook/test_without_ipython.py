"""Use without a notebook: scripts, pytest, and `%run` of a script in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.processes import run_forked

SCRIPT = """
import torch, jitmagic

@jitmagic.jit
def step(x):
    y = torch.relu(x) * 2
    print("between")
    return y.sum()

total = sum(step(torch.ones(3)).item() for _ in range(3))
report = jitmagic.explain(step)
if __name__ == "__main__":
    print(total)
    print(report)
"""
NO_IPYTHON = "import sys\nsys.modules['IPython'] = None\n"  # any import of it raises


def test_a_script_needs_no_ipython(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NO_IPYTHON + SCRIPT)
    done = run_forked(
        f"import runpy\nrunpy.run_path({str(tmp_path / 'script.py')!r}, {{}}, '__main__')"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in (
        "18.0\n",
        "step is not measured yet",
        "graph break: print() writes output",
    ):
        assert text in done.stdout


TESTS = """
import warnings
import pytest, torch, jitmagic
from script import step

def test_step():
    assert step(torch.ones(3)).item() == 6.0

@pytest.mark.parametrize("rows", [2, 3, 4])
def test_more(rows, capsys):
    assert jitmagic.jit(lambda x: x * 2)(torch.ones(rows)).sum() == 2 * rows
    assert capsys.readouterr() == ("", "")

def test_an_error_is_shown_where_it_is():
    with pytest.raises(RuntimeError) as caught:
        jitmagic.jit(lambda x: x @ torch.ones(7, 7))(torch.ones(3))
    assert str(caught.traceback[-1].path) == __file__
"""


def test_pytest_needs_no_ipython(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "conftest.py").write_text(NO_IPYTHON)
    (tmp_path / "test_it.py").write_text(TESTS)
    code = f"import pytest, sys\nsys.exit(pytest.main(['-q', '-W', 'error', {str(tmp_path)!r}]))"
    # Plugins that happen to be installed may warn: pytest-benchmark does so next to pytest-xdist.
    done = run_forked(
        code, PYTEST_ADDOPTS="-p no:cacheprovider", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_run_tags_what_the_script_tags(loaded: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    loaded.run_line_magic("run", str(tmp_path / "script.py"))
    out = capsys.readouterr().out
    assert "18.0\n" in out
    assert "step is not measured yet" in out
    loaded.run_cell("again = step(torch.ones(3)).item()")
    assert loaded.user_ns["again"] == 6.0
    [card] = loaded.run_line_magic("compile_status", "step").cards
    assert card.calls == 4
