"""Run all checks and print {check: "ok" or traceback} as JSON.

jitmagic's own `__init__` needs torch; a stub package with the same path stands in for it, with the
extension under test as its `_frame`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
import types
from pathlib import Path

MODULES = ("guarding", "classes", "dispatching", "hooking", "in_place", "concealing")


def load(library: str) -> None:
    package = types.ModuleType("jitmagic")
    package.__path__ = [str(Path(__file__).resolve().parents[3] / "jitmagic")]
    sys.modules["jitmagic"] = package
    spec = importlib.util.spec_from_file_location("jitmagic._frame", library)
    package._frame = importlib.util.module_from_spec(spec)
    sys.modules["jitmagic._frame"] = package._frame
    spec.loader.exec_module(package._frame)


def main() -> None:
    load(sys.argv[1])
    only = sys.argv[2:]
    results = {}
    for name in MODULES:
        for check, function in importlib.import_module(f"frame_checks.{name}").CHECKS.items():
            if only and f"{name}.{check}" not in only:
                continue
            print(f"{name}.{check}", file=sys.stderr, flush=True)  # the last line tells who crashed
            try:
                function()
                results[f"{name}.{check}"] = "ok"
            except Exception:
                results[f"{name}.{check}"] = traceback.format_exc()
    assert "torch" not in sys.modules
    print(json.dumps(results))


main()
