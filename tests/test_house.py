"""The house itself: who may import whom, public names, and what the package never touches."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "jitmagic"
BASE = {"errors", "options", "target", "spec"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "options": {"errors"},
    "spec": set(),
    "target": {"options"},
    "records": BASE,
    "bytecode": BASE,
    "guards": BASE | {"bytecode"},
    "graph": BASE,
    "frame": BASE | {"bytecode", "guards", "records"},
    "trace": BASE | {"bytecode", "guards", "graph"},
    "autograd": BASE | {"graph"},
    "loops": BASE | {"graph"},
    "schedule": BASE | {"loops"},
    "codegen": BASE | {"loops", "schedule"},
    "runtime": BASE | {"codegen"},
    "pipeline": BASE
    | {"records", "bytecode", "guards", "graph", "frame", "trace", "autograd", "loops", "schedule"}
    | {"codegen", "runtime"},
    "api": BASE | {"frame", "pipeline", "records", "bytecode"},
    "diagnostics": BASE | {"records", "api", "guards", "trace", "loops", "frame", "graph"},
    "notebook": BASE | {"api", "diagnostics", "records"},
}
NATIVE = {"_frame", "_runtime"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_rooms(path: Path) -> set[str]:
    package = ("jitmagic", *path.relative_to(PACKAGE).parent.parts)
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            dotted = ".".join((*base, node.module or "")).strip(".")
            names = [f"{dotted}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "jitmagic" and len(parts) > 1:
                rooms.add(parts[1])
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_flow(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    extra = imported_rooms(path) - ALLOWED[room] - NATIVE - {room}
    assert not extra, f"{room} must not import {sorted(extra)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rivals_are_never_used(path: Path) -> None:
    forbidden = (
        r"torch\._(dynamo|inductor)|torch\.compile\(|_functorch\.(aot_autograd|partitioners)"
    )
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        for name in names:
            assert not re.match(forbidden, name), f"line {node.lineno}: {name}"  # type: ignore[attr-defined]


def test_import_is_light() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); import jitmagic;"
        "new = set(sys.modules) - before;"
        "heavy = ('torch._dynamo', 'torch._inductor', 'sympy', 'triton', 'numba', 'IPython',"
        " 'rich', 'jitmagic.pipeline', 'jitmagic.trace', 'jitmagic.autograd', 'jitmagic.loops',"
        " 'jitmagic.schedule', 'jitmagic.codegen', 'jitmagic.runtime');"
        "print([m for m in new if m.split('.')[0] in heavy or '.'.join(m.split('.')[:2]) in heavy])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_all_names_exist() -> None:
    for module in pkgutil.walk_packages([str(PACKAGE)], "jitmagic."):
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            assert hasattr(loaded, name), f"{module.name}.{name}"
