"""A rank that dies while it compiles ends the others with torch's own error."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from .dying import COMPILING, TIMEOUT
from .launching import launch


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("victim", [0, 1])  # rank 0 serves the store
def test_others_end_with_an_error_and_have_named_the_rank(tmp_path: Path, victim: int) -> None:
    def kill(processes: list[subprocess.Popen[str]]) -> None:
        ends = time.monotonic() + 60
        while not (tmp_path / COMPILING).exists() and time.monotonic() < ends:
            time.sleep(0.05)
        processes[victim].send_signal(signal.SIGKILL)

    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    module, environments = "tests.distributed.dying", 3 * [address]
    ended = launch(module, [str(victim)], tmp_path, 3, environments=environments, during=kill)
    assert ended[victim].status == -signal.SIGKILL
    others = [one for rank, one in enumerate(ended) if rank != victim]
    assert [one.status for one in others] == [3, 3], [one.error for one in others]
    for one in others:
        assert one.answer["error"]
        assert one.answer["seconds"] < 60 + TIMEOUT.total_seconds()
    said = f"the ranks wait for rank {victim}, which compiles total"
    assert any(said in one.error for one in others)
