"""The corpus of Python programs here and, with a stand-in for torch, on the other interpreters."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest

from tests.processes import ROOT, interpreter, json_of

from .agreement import agree
from .every_python import OPCODES_OF_314, check_opcodes, running_opcodes
from .forcing import leave_loops
from .loop_programs import PROGRAMS
from .new_syntax_programs import NEW_SYNTAX
from .suspended_corpus import REWRITTEN

HERE = f"3.{sys.version_info.minor}"
OTHERS = [one for one in ("3.11", "3.12", "3.13", "3.14") if one != HERE]
NAMES = [fn.__name__ for fn, _ in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str) -> None:
    agree(*PROGRAMS[NAMES.index(name)])


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_generators_and_coroutines(name: str) -> None:
    REWRITTEN[name]()


@pytest.mark.parametrize("name", [fn.__name__ for fn, _ in PROGRAMS if not fn.__defaults__])
def test_loops_left_to_python_as_a_whole(name: str) -> None:
    leave_loops(*PROGRAMS[NAMES.index(name)])


@cache
def outcomes(executable: str) -> dict[str, Any]:
    """Return the results of every_python.py: program name to "ok" or an error."""
    return json_of(executable, "tests.trace.every_python", folder=ROOT)


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("name", [*NAMES, *REWRITTEN, "every opcode has a handler or a reason"])
def test_other_pythons(version: str, name: str) -> None:
    executable = interpreter(version)
    if executable is None:
        pytest.skip(f"no working Python {version} on this machine")
    if name in NEW_SYNTAX and name not in outcomes(executable):
        pytest.skip(f"Python {version} does not compile it")
    assert outcomes(executable)[name] == "ok"


@pytest.mark.parametrize("version", [sys.version_info[:2], (3, 14)], ids=str)
def test_every_opcode_has_a_handler_or_a_reason(version: tuple[int, int]) -> None:
    known = OPCODES_OF_314 if version == (3, 14) else running_opcodes()
    assert check_opcodes(version, known) == "ok"


@pytest.mark.skipif(sys.version_info[:2] != (3, 14), reason="checks a list of another Python")
def test_the_list_of_opcodes_is_that_of_the_interpreter() -> None:
    assert set(OPCODES_OF_314) == set(running_opcodes())
