"""The corpus of Python programs here and, with a stand-in for torch, on the other interpreters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .agreement import agree
from .python_programs import PROGRAMS

ROOT = Path(__file__).parents[2]
HERE = f"3.{sys.version_info.minor}"
OTHERS = [one for one in ("3.11", "3.12", "3.13") if one != HERE]
NAMES = [fn.__name__ for fn, _ in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str) -> None:
    agree(*PROGRAMS[NAMES.index(name)])


@cache
def interpreter(version: str) -> str | None:
    """A working interpreter of that version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(str(p) for p in root.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    return None


@cache
def outcomes(executable: str) -> dict[str, Any]:
    """What every_python.py reports there: program name to "ok" or what went wrong."""
    command = [executable, "-W", "ignore", "-m", "tests.trace.every_python"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, f"{executable} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("name", [*NAMES, "every opcode has a handler or a reason"])
def test_other_pythons(version: str, name: str) -> None:
    executable = interpreter(version)
    if executable is None:
        pytest.skip(f"no working Python {version} on this machine")
    assert outcomes(executable)[name] == "ok"


def test_every_opcode_has_a_handler_or_a_reason() -> None:
    from .every_python import check_opcodes

    assert check_opcodes() == "ok"
