"""Reports of all ranks: status and explain, which one rank asks for, and timelines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from ..distributed.launching import launch


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The answers of both ranks."""
    ended = launch("tests.diagnostics.reporting_ranks", [], tmp_path_factory.mktemp("ranks"))
    assert [one.status for one in ended] == [0, 0], [one.error[-2000:] for one in ended]
    return [one.answer for one in ended]


def test_one_rank_reports_for_all(answers: list[Any]) -> None:
    status = answers[0]["status"]
    assert sorted(status) == ["0", "1"]
    assert all("loss: compiled" in text for text in status.values())


def test_one_rank_explains_for_all(answers: list[Any]) -> None:
    explained = answers[0]["explained"]
    assert sorted(explained) == ["0", "1"]
    assert all("total = x.tanh().sum()" in text for text in explained.values())


def test_each_rank_gets_the_timelines_of_all(answers: list[Any]) -> None:
    assert [one["timelines"] for one in answers] == [[["gloo:all_reduce"]] * 2] * 2
