"""Running notebooks in real kernels: processes of this Python that find what the tests find."""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, child_environment

_FRESH = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")


@cache
def _forks() -> str:
    """The socket of the process that kernels are forks of: it ends with this one at the latest."""
    folder = tempfile.TemporaryDirectory(prefix="jitmagic-kernels-")
    path = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        number = listener.fileno()
        command = [sys.executable, "-m", "tests.notebook.forked_kernels", str(number)]
        server = subprocess.Popen(
            command, env=child_environment(), cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[number]
        )
    atexit.register(folder.cleanup)
    atexit.register(server.communicate)
    return path


def kernel_command() -> list[str]:
    """Starts kernels as forks of a process that has done their imports."""
    script = str(Path(__file__).with_name("start_kernel.py"))
    return [sys.executable, "-I", "-S", script, _forks(), "-f", "{connection_file}"]


def execute(notebook: Any, folder: Path = ROOT, *, fresh: bool = False) -> None:
    """Run all cells in place; skips the test where the notebook tools are not installed. `fresh`:
    in a process that has imported nothing, as a user's does.
    """
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    client = nbclient.NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    manager = client.create_kernel_manager()
    manager.kernel_spec.argv = list(_FRESH) if fresh else kernel_command()
    client.execute(env=child_environment())
