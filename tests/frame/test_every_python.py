"""The native checks on every installed interpreter, as one test per interpreter and check.

The extension is built without torch for each of them, with the compiler called directly: the
interpreters that have no torch have no setuptools either.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.processes import ROOT, interpreter, json_of

HERE = Path(__file__).parent
SOURCES = ROOT / "extensions" / "frame"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CHECKS = [
    f"{name}.{check}"
    for name in ("guarding", "classes", "dispatching", "hooking", "in_place", "concealing")
    for check in re.findall(
        r"^@check\ndef (\w+)", (HERE / "frame_checks" / f"{name}.py").read_text(), re.MULTILINE
    )
]


def _build(executable: str) -> Path:
    """The extension for one interpreter, built once per state of the sources."""
    asked = "import sysconfig as s; print(s.get_path('include')); print(s.get_config_var('SOABI'))"
    answer = subprocess.run([executable, "-c", asked], capture_output=True, text=True, check=True)
    include, abi = answer.stdout.split()
    state = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            state.update(path.read_bytes())
    folder = ROOT / "build" / "frame_checks" / f"{abi}-{state.hexdigest()[:16]}"
    library = folder / "_frame.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # All C++ in one unit: the libraries' headers take five times as long as the sources.
    everything = folder / "everything.cpp"
    sources = sorted(path for path in SOURCES.glob("*.c*") if "tensor" not in path.name)
    cpp = [path for path in sources if path.suffix == ".cpp"]
    everything.write_text("".join(f'#include "{path}"\n' for path in cpp))
    flags = ["-O1", "-fPIC", "-Wall", "-Werror", "-DJITMAGIC_WITHOUT_TORCH=1", f"-I{include}", "-c"]
    running, objects = [], []
    for source in [everything, *(path for path in sources if path.suffix == ".c")]:
        compiler = ["gcc", "-std=c11"] if source.suffix == ".c" else ["g++", "-std=c++20"]
        objects.append(str(folder / f"{source.name}.o"))
        running.append(subprocess.Popen([*compiler, *flags, str(source), "-o", objects[-1]]))
    assert [process.wait() for process in running] == [0] * len(running)
    partial = folder / f"{os.getpid()}.so"
    subprocess.run(["g++", "-shared", *objects, "-o", str(partial)], check=True)
    partial.rename(library)
    return library


@cache
def results(executable: str) -> dict[str, str]:
    return json_of(executable, "frame_checks", str(_build(executable)), folder=HERE)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_check(version: str, check: str) -> None:
    executable = interpreter(version)
    if executable is None:
        pytest.skip(f"no working Python {version} on this machine")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    outcome = results(executable)[check]
    assert outcome == "ok", outcome
