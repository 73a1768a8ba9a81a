"""demos/distributed: both systems reach the same losses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

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
        assert losses[parallel, "jitmagic"] == pytest.approx(losses[parallel, "eager"], abs=3e-4)
