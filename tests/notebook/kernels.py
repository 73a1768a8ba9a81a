"""Running notebooks in a real kernel: a process of this Python that finds what the tests find."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT, child_environment


def execute(notebook: Any, folder: Path = ROOT) -> None:
    """Run all cells in place; skips the test where the notebook tools are not installed."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    client = nbclient.NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.create_kernel_manager().kernel_cmd = [
        *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
    ]
    client.execute(env=child_environment())
