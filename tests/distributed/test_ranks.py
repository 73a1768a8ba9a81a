"""Ranks agree on sizes, say whom they wait for, and report together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ..processes import ROOT, child_environment

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], str]]:
    """The answers and the standard error of both ranks."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    command = [sys.executable, "-m", "tests.distributed.agreeing"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([*command, str(rank), folder], env=child_environment(), cwd=ROOT, **pipes)
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(json.loads(out.splitlines()[-1]), error) for out, error in outputs]


def test_every_rank_compiles_when_a_size_varies_on_one(ranks: Any) -> None:
    assert [answers["compiles"] for answers, _ in ranks] == [2, 2]


def test_ranks_on_which_other_sizes_vary_compile_for_all_of_them_once(ranks: Any) -> None:
    assert [answers["each"] for answers, _ in ranks] == [2, 2]


def test_a_rank_that_waits_says_for_whom(ranks: Any) -> None:
    said = "the ranks wait for rank 1, which compiles total"
    assert [said in error for _, error in ranks] == [True, False]


def test_failures_name_their_rank(ranks: Any) -> None:
    for rank, (answers, _) in enumerate(ranks):
        assert answers["failure"].startswith(f"rank {rank}: ")


def test_every_rank_compiles_when_a_number_varies_on_one(ranks: Any) -> None:
    found = [answers["numbers"] for answers, _ in ranks]
    assert found == 2 * [[2, [16.0, 16.0, 24.0, 28.0, 32.0, 36.0]]]  # no third compile for 5.0


def test_ranks_reach_the_recompile_limit_together_and_try_again_together(ranks: Any) -> None:
    for rank, (answers, _) in enumerate(ranks):
        stopped, compiles, warned = answers["limit"]
        assert stopped == [True]
        assert compiles == 1
        assert warned == (1 if rank == 0 else 0)


def test_first_rank_that_has_compared_code_with_eager_decides(ranks: Any) -> None:
    assert [answers["slower"] for answers, _ in ranks] == ["Eager", "Eager"]
    first, second = (answers["contrary"] for answers, _ in ranks)
    assert first == second


def test_ranks_compile_once_it_pays_for_one(ranks: Any) -> None:
    found = [answers["pays"] for answers, _ in ranks]
    assert all(step < 39 and compiles == 1 for step, compiles in found)


def test_a_program_of_one_process_has_no_board(tmp_path: Path) -> None:
    from jitmagic.ranks.board import board

    assert board() is None
