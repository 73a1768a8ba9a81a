"""What `make test` does when a worker dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import child_environment

_CONFTEST = """
from tests.scheduling import ByFile

def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
_TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(5))
def test_number(number):
    with Path("started").open("a") as file:
        print(number, file=file)
    if number == 1:
        os._exit(1)
"""


def test_a_crash_is_one_failure_that_names_its_test(tmp_path: Path) -> None:
    """The tests behind it are run, each once, by the worker that takes its place."""
    pytest.importorskip("xdist")
    for name, text in {"conftest.py": _CONFTEST, "test_crash.py": _TESTS}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n1", "--dist=loadscope", "-p", "no:cacheprovider"]
    env = child_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(
        [*command, "-p", "xdist"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (tmp_path / "started").read_text().split() == list("01234")
    assert "crashed while running 'test_crash.py::test_number[1]'" in done.stdout
    assert "1 failed, 4 passed" in done.stdout
    assert done.returncode == 1
