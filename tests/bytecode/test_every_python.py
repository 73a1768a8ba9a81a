"""The bytecode checks on every installed interpreter, as one test per interpreter and check."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VERSIONS = ("3.11", "3.12", "3.13")
MODULES = ("tables", "roundtrip", "flows", "building")
CHECKS = [
    f"{name}.{check}"
    for name in MODULES
    for check in importlib.import_module(f"bytecode_checks.{name}").CHECKS
]


@cache
def interpreter(version: str) -> str | None:
    """A working interpreter of that version. A pyenv shim of that name may exist and not work."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += sorted(str(p) for p in root.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    return None


@cache
def results(executable: str) -> dict[str, str]:
    command = [executable, "-W", "ignore", "-m", "bytecode_checks"]
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, f"{executable} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_check(version: str, check: str) -> None:
    executable = interpreter(version)
    if executable is None:
        pytest.skip(f"no working Python {version} on this machine")
    outcome = results(executable)[check]
    assert outcome == "ok", outcome
