"""Lazy imports: `import jitmagic` and `%load_ext` load only tagging, dispatch and magics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.processes import run_forked

STAGES = ("autograd codegen compile diagnostics graph loops runtime schedule trace").split()
TOLD = """
new = sorted(set(sys.modules) - before)
own = [name for name in sys.stdlib_module_names]
others = {name.partition(".")[0] for name in new} - {"jitmagic", "torch", *own}
print(json.dumps([sorted(others), new, gc.isenabled()]))
"""
IMPORT = """
import gc, json, sys, torch
before = set(sys.modules)
import jitmagic
"""
# The stages are loaded in the background, of which nothing is to be seen here.
LOAD_EXT = """
import gc, json, sys, torch
from IPython.core.interactiveshell import InteractiveShell
import jitmagic.api
jitmagic.api.prepare = lambda: None
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "jitmagic")
shell.run_cell("def plain(): pass")
shell.run_cell("plain")
assert "compile" in shell.magics_manager.magics["cell"]
"""


def told(script: str) -> Any:
    done = run_forked(script + TOLD, imported="torch")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def under(modules: list[str], *packages: str) -> list[str]:
    wanted = tuple(f"jitmagic.{name}" for name in packages)
    return [m for m in modules if m.startswith(tuple(f"{w}." for w in wanted)) or m in wanted]


def test_import_loads_tagging_and_dispatch() -> None:
    """No package beside torch and the standard library, and no stage."""
    others, modules, collects = told(IMPORT)
    assert others == []
    assert [m for m in modules if m.startswith("torch.")] == ["torch.utils._device"]
    assert under(modules, *STAGES, "notebook") == []
    assert "jitmagic.frame.tag" in modules
    assert collects


def test_load_ext_loads_the_magics() -> None:
    pytest.importorskip("IPython")
    others, modules, _ = told(LOAD_EXT)
    assert others in ([], ["IPython"])  # of IPython what its own terminal loads
    light = ["jitmagic.diagnostics", "jitmagic.diagnostics.timing", "jitmagic.diagnostics.words"]
    assert under(modules, *STAGES) == light
    assert "jitmagic.notebook.magics" in modules


def test_a_collector_that_is_off_stays_off() -> None:
    assert told(IMPORT.replace("before =", "gc.disable()\nbefore ="))[2] is False


@pytest.mark.parametrize("name", ["explain", "report", "status", "Explanation"])
def test_lazy_modules_are_imported_on_first_use(name: str) -> None:
    others, modules, collects = told(IMPORT + f"assert callable(jitmagic.{name})\n")
    assert "sympy" not in others
    assert "numba" not in others
    assert "IPython" not in others
    assert under(modules, "diagnostics")
    assert collects
