"""Records which keys each module adds to the tables of late_tables.py, as it is executed."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import Counter, defaultdict
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

__all__ = ["print_rows"]

_PACKAGES = ("autograd", "graph", "loops", "trace")


def _names(table: Any) -> Counter[str]:
    counts = [len(value) if isinstance(value, list) else 1 for value in table.values()]
    keys = zip(table, counts, strict=True)
    return Counter(table.name_of(key) for key, count in keys for _ in range(count))


def _record(found: dict[str, dict[str, list[str]]]) -> None:
    """Note what each module adds. A module that it imports is executed, and noted, before it."""
    from jitmagic.late_tables import LateTable

    tables: list[LateTable[Any, Any]] = []
    known: dict[str, Counter[str]] = defaultdict(Counter)
    execute, create = SourceFileLoader.exec_module, LateTable.__init__

    def init(self: LateTable[Any, Any], *args: Any) -> None:
        create(self, *args)
        tables.append(self)

    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        execute(self, module)
        for table in tables:
            names = _names(table)
            if added := names - known[table.title]:
                name = module.__name__.removeprefix("jitmagic.")
                found.setdefault(table.title, {})[name] = sorted(added)
            known[table.title] = names

    LateTable.__init__ = init  # type: ignore[method-assign]
    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]


def print_rows() -> None:
    """Import all modules of the stages and print {table: {module: names of keys}} as JSON."""
    found: dict[str, dict[str, list[str]]] = {}
    import jitmagic

    _record(found)
    for package in _PACKAGES:
        folder = [f"{path}/{package}" for path in jitmagic.__path__]
        for module in pkgutil.walk_packages(folder, f"jitmagic.{package}."):
            importlib.import_module(module.name)
    print(json.dumps(found))
