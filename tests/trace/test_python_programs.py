"""The corpus of Python programs here and, with a stand-in for torch, on the other interpreters."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest

from tests.processes import ROOT, interpreter, json_of

from .agreement import agree
from .forcing import leave_loops
from .loop_programs import PROGRAMS

HERE = f"3.{sys.version_info.minor}"
OTHERS = [one for one in ("3.11", "3.12", "3.13", "3.14") if one != HERE]
NAMES = [fn.__name__ for fn, _ in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str) -> None:
    agree(*PROGRAMS[NAMES.index(name)])


@pytest.mark.parametrize("name", [fn.__name__ for fn, _ in PROGRAMS if not fn.__defaults__])
def test_loops_left_to_python_as_a_whole(name: str) -> None:
    leave_loops(*PROGRAMS[NAMES.index(name)])


@cache
def outcomes(executable: str) -> dict[str, Any]:
    """Return the results of every_python.py: program name to "ok" or an error."""
    return json_of(executable, "tests.trace.every_python", folder=ROOT)


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
