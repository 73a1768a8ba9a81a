"""Launches of user-written Triton kernels become native, with the arguments that Triton passes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.processes import ROOT, child_environment

pytest.importorskip("triton")
if torch.version.cuda is not None:
    pytest.skip("libc10_cuda is loaded: tests/device has such tests", allow_module_level=True)

from .native_launches import TESTS  # noqa: E402


@cache
def outcomes() -> dict[str, str]:
    """Run all in one process: Triton's driver and libcuda are replaced in it."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.runtime.native_launches", folder]
        env = child_environment(TRITON_CACHE_DIR=folder)
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [test.__name__ for test in TESTS])
def test_native_launches(name: str) -> None:
    assert not outcomes()[name], outcomes()[name]
