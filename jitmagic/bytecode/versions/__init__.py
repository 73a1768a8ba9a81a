"""The version tables, and the one of the running interpreter, chosen at import.

`RUNNING` also has the interpreter's opcode numbers; `tables` imports every supported version.
On an interpreter without a table the import raises an error: wrong bytecode would crash it.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import replace
from importlib import import_module

from ...errors import BytecodeError
from .table import COMPARE_OPERATORS, Kind, VersionTable

__all__ = ["COMPARE_OPERATORS", "RUNNING", "Kind", "VersionTable", "tables"]

_VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))


def _table_of(version: tuple[int, int]) -> VersionTable:
    table: VersionTable = import_module(f".v{version[0]}{version[1]}", __name__).TABLE
    return table


def tables() -> dict[tuple[int, int], VersionTable]:
    """Return the tables of all supported versions."""
    return {version: _table_of(version) for version in _VERSIONS}


def _running() -> VersionTable:
    running = sys.version_info[:2]
    if running not in _VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _VERSIONS)
        raise BytecodeError(f"no bytecode table for Python {sys.version} (there are {known})")
    real = {
        name: number
        for name, number in dis.opmap.items()
        if number < 256 and not name.startswith("INSTRUMENTED_")
    }
    return replace(_table_of(running), opcodes=real)


RUNNING = _running()
