"""Child processes of tests: fresh interpreters with the parent's modules, and other Pythons.

A child of the running Python is handed the parent's whole path, so that it finds what the parent
found, wherever that was installed. Other Pythons get none of it: these modules are not theirs.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a fresh process of this Python; `changes` are variables to set."""
    path = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, sys.path)]))
    return {**os.environ, "PYTHONPATH": path, **changes}


def run_python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process of this Python, in the repository's root."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    env = child_environment(**environment)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)


@cache
def _forks(imported: str) -> subprocess.Popen[str]:
    """It ends with this process at the latest: its input does."""
    command = [sys.executable, "-m", "tests.forks", imported]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, env=child_environment(), cwd=ROOT, text=True, **pipes)
    atexit.register(server.communicate)
    return server


def run_forked(
    code: str,
    *args: str,
    folder: Path = ROOT,
    imported: str = "jitmagic.compile.pipeline",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """As `run_python`, in a fork of a process that has imported that module and compiled nothing:
    two seconds of processor time less. `torch` where it is about what jitmagic imports.
    """
    server = _forks(imported)
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as outputs:
        files = {name: f"{outputs}/{name}" for name in ("stdout", "stderr")}
        request = {"code": textwrap.dedent(code), "arguments": args, "folder": str(folder), **files}
        request["environment"] = child_environment(**environment)
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code_of = int(server.stdout.readline())
        texts = [Path(file).read_text() for file in files.values()]
    return subprocess.CompletedProcess(code, code_of, *texts)


@cache
def interpreter(version: str) -> str | None:
    """A working interpreter of that version. A pyenv shim of that name may exist and not work."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += sorted(str(p) for p in root.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() == version:
            return candidate
    return None


def json_of(executable: str, module: str, *args: str, folder: Path, seconds: int = 250) -> Any:
    """What `python -m module` prints on another interpreter, in a folder that it imports from."""
    command: Sequence[str] = [executable, "-W", "ignore", "-m", module, *args]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{executable} ended with {done.returncode}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)
