"""extend.register_device and extend.register_renderer, on the device of demos/extend_device.py."""

from __future__ import annotations

import ast

import pytest

from tests.processes import ROOT, run_forked

_TREE = ast.parse((ROOT / "tests" / "extend" / "device_programs.py").read_text())
NAMES = [
    node.name
    for node in _TREE.body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(mark, ast.Name) and mark.id == "program" for mark in node.decorator_list)
]


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str) -> None:
    done = run_forked(f"from tests.extend import device_programs\ndevice_programs.{name}()")
    assert done.returncode == 0, done.stderr
