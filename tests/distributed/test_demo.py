"""demos/distributed: all systems reach the same losses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ..notebook.kernels import execute
from ..processes import ROOT, child_environment

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch has no gloo",
)


@needs_gloo
def test_a_gpt_trains_on_two_processes() -> None:
    script = "demos/distributed/train_gpt.py"
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    options = ["--parallel", "ddp", "tp", "--steps", "3"]
    done = subprocess.run(
        [*run, *options],
        env=child_environment(OMP_NUM_THREADS="1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    losses = {(row[0], row[1]): [float(row[2]), float(row[3])] for row in rows}
    for parallel in ("ddp", "tp"):
        for system in ("jitmagic", "jitmagic-step"):
            assert losses[parallel, system] == pytest.approx(losses[parallel, "eager"], abs=3e-4)


@needs_gloo
def test_a_notebook_shows_the_status_of_its_processes() -> None:
    nbformat = pytest.importorskip("nbformat")
    folder = ROOT / "demos" / "distributed"
    notebook = nbformat.read(folder / "ranks.ipynb", as_version=4)
    execute(notebook, folder, fresh=True)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert "rank 0" in text
    assert "rank 1" in text
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
