"""User-written Triton kernels are nodes of one graph and do what eager does."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from jitmagic.compat.table import HERE
from tests.processes import ROOT, child_environment

from .behaviours import TESTS
from .programs import PROGRAMS

pytest.importorskip("triton")


@cache
def outcomes() -> dict[str, str]:
    """Run all programs in one process: Triton interprets kernels only if it is set at import."""
    command = [sys.executable, "-m", "tests.programs.triton_kernels.behaviours"]
    env = child_environment(TRITON_INTERPRET="1")
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


# torch 2.11 wraps no interpreted kernels, and the interpreter of its Triton takes no such grid.
_NEWER = ("keywords_in_any_order", "Holder", "operator", "wrapped_kernel")


@pytest.mark.parametrize("name", [f"{n} {program}" for n, program in enumerate(PROGRAMS)])
def test_program_with_kernels_is_one_graph_and_equals_eager(name: str) -> None:
    if HERE < (2, 12) and name.partition(" ")[2].startswith(_NEWER):
        pytest.skip("eager cannot run it with this torch")
    assert not outcomes()[name], outcomes()[name]


@pytest.mark.parametrize("name", [test.__name__ for test in TESTS])
def test_kernels(name: str) -> None:
    assert not outcomes()[name], outcomes()[name]
