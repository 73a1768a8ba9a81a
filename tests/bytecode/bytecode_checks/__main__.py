"""Run all checks and print {check: "ok" or traceback} as JSON.

jitmagic's own `__init__` needs torch; a stub package with the same path stands in for it, so that
only the bytecode package and the errors are loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import types
from pathlib import Path

MODULES = ("tables", "roundtrip", "flows", "building")


def main() -> None:
    package = types.ModuleType("jitmagic")
    package.__path__ = [str(Path(__file__).resolve().parents[3] / "jitmagic")]
    sys.modules["jitmagic"] = package
    results = {}
    for name in MODULES:
        for check, function in importlib.import_module(f"bytecode_checks.{name}").CHECKS.items():
            try:
                function()
                results[f"{name}.{check}"] = "ok"
            except Exception:
                results[f"{name}.{check}"] = traceback.format_exc()
    assert "torch" not in sys.modules
    print(json.dumps(results))


main()
