"""The version tables, and the one of the running interpreter, chosen at import.

`RUNNING` also has the interpreter's opcode numbers; `TABLES` lists every supported version as data.
On an interpreter without a table the import raises an error: wrong bytecode would crash it.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import replace

from ...errors import BytecodeError
from . import v311, v312, v313, v314
from .table import COMPARE_OPERATORS, Kind, VersionTable

__all__ = ["COMPARE_OPERATORS", "RUNNING", "TABLES", "Kind", "VersionTable"]

TABLES: dict[tuple[int, int], VersionTable] = {
    module.TABLE.version: module.TABLE for module in (v311, v312, v313, v314)
}


def _running() -> VersionTable:
    table = TABLES.get(sys.version_info[:2])
    if table is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in TABLES)
        raise BytecodeError(f"no bytecode table for Python {sys.version} (there are {known})")
    real = {
        name: number
        for name, number in dis.opmap.items()
        if number < 256 and not name.startswith("INSTRUMENTED_")
    }
    return replace(table, opcodes=real)


RUNNING = _running()
