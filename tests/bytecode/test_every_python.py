"""The bytecode checks on every installed interpreter, as one test per interpreter and check."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import pytest

from tests.processes import interpreter, json_of

HERE = Path(__file__).parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
MODULES = ("tables", "roundtrip", "flows", "building")
CHECKS = [
    f"{name}.{check}"
    for name in MODULES
    for check in importlib.import_module(f"bytecode_checks.{name}").CHECKS
]


@cache
def results(executable: str) -> dict[str, str]:
    return json_of(executable, "bytecode_checks", folder=HERE)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_check(version: str, check: str) -> None:
    executable = interpreter(version)
    if executable is None:
        pytest.skip(f"no working Python {version} on this machine")
    outcome = results(executable)[check]
    assert outcome == "ok", outcome
