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


_BOTH = """
import os
import time
from pathlib import Path

time.sleep(1)  # both have begun to collect before one has done so

def test_crash():
    Path(__file__).with_suffix(".started").touch()
    while len([*Path(__file__).parent.glob("*.started")]) < 2:
        time.sleep(0.01)
    os._exit(1)

def test_behind_it():
    pass
"""


def run(folder: Path, workers: int, **tests: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("xdist")
    for name, text in {"conftest": _CONFTEST, **tests}.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", f"-n{workers}", "--dist=loadscope"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "xdist"],
        cwd=folder,
        env=child_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        capture_output=True,
        text=True,
    )


def test_a_crash_is_one_failure_that_names_its_test(tmp_path: Path) -> None:
    """The tests behind it are run, each once, by the worker that takes its place."""
    done = run(tmp_path, 1, test_crash=_TESTS)
    assert (tmp_path / "started").read_text().split() == list("01234")
    assert "crashed while running 'test_crash.py::test_number[1]'" in done.stdout
    assert "1 failed, 4 passed" in done.stdout
    assert done.returncode == 1


def test_two_workers_that_crash_at_once_are_both_replaced(tmp_path: Path) -> None:
    done = run(tmp_path, 2, test_one=_BOTH, test_two=_BOTH)
    assert "2 failed, 2 passed" in done.stdout
    assert done.returncode == 1
