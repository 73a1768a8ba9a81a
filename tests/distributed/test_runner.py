"""The runner itself: programs that differ, raise, hang or die do not end the run."""

from __future__ import annotations

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("torch has no gloo", allow_module_level=True)

from .runner import Outcome, run_all

TITLES = ("hangs", "differs", "reorders", "raises on one rank", "dies", "right")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    found = run_all(TITLES, "jitmagic", seconds=12.0, modules=["failing_programs"])
    return {outcome.title: outcome for outcome in found}


def test_hang_names_the_program_of_each_rank(outcomes: dict[str, Outcome]) -> None:
    assert "rank 0 did not return from 'hangs'" in outcomes["hangs"].wrong
    assert "rank 1 did not return from 'hangs'" in outcomes["hangs"].wrong


def test_difference_names_its_rank(outcomes: dict[str, Outcome]) -> None:
    assert "rank 1: Tensor-likes are not close" in outcomes["differs"].wrong
    assert "rank 0" not in outcomes["differs"].wrong


def test_order_of_collectives_is_compared(outcomes: dict[str, Outcome]) -> None:
    assert not outcomes["reorders"].wrong
    assert "collective 0 is" in outcomes["reorders"].reordered


def test_rank_that_waits_for_one_that_raised_is_killed(outcomes: dict[str, Outcome]) -> None:
    assert "rank 0: Traceback" in outcomes["raises on one rank"].wrong
    assert "rank 1 did not return" in outcomes["raises on one rank"].wrong


def test_death_of_a_rank_is_an_outcome(outcomes: dict[str, Outcome]) -> None:
    assert "rank 0 did not return from 'dies'" in outcomes["dies"].wrong


def test_run_goes_on_after_failures(outcomes: dict[str, Outcome]) -> None:
    assert not outcomes["right"].wrong, outcomes["right"].wrong
    assert (outcomes["right"].graphs, outcomes["right"].breaks) == (1, 0)
