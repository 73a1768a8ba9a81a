"""Four ranks in groups and meshes, delayed ranks with own sizes, and an elastic restart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from ..processes import ROOT, child_environment
from .launching import QUIET, launch


def test_groups_meshes_shapes_and_joined_batches_of_four_ranks(tmp_path: Path) -> None:
    ended = launch("tests.distributed.four", [], tmp_path, 4)
    assert [one.status for one in ended] == [0] * 4, [one.error[-2000:] for one in ended]
    assert [one.answer for one in ended] == [2] * 4  # a size varies in one of the two groups


def test_delayed_ranks_compile_equally_often(tmp_path: Path) -> None:
    """1,000 steps: python -m tests.distributed.stress --steps 1000."""
    ended = launch("tests.distributed.stress", ["60"], tmp_path)
    assert [one.status for one in ended] == [0, 0], [one.error[-2000:] for one in ended]
    first, second = (one.answer for one in ended)
    assert first["compiles"] == second["compiles"]
    assert max(first["loss"], second["loss"]) < 1e-4
    assert max(first["apart"], second["apart"]) < 1e-5


def test_restarted_ranks_use_what_was_compiled(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["--max-restarts", "1", "-m", "tests.distributed.elastic", str(tmp_path)]
    cache = {"JITMAGIC_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*run, *program],
        env=child_environment(**QUIET, **cache),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}").read_text())
        assert found == {"attempt": 1, "model": ["disk"], "mean": ["disk"]}
