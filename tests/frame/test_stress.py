"""The short version of tests/frame/stress.py; the long one is run by hand before a release."""

from __future__ import annotations

import pytest

from .stress import interrupts, threads


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
def test_results_are_right_after_interrupted_compiles_and_calls():
    done = interrupts(25, seed=1)
    assert done.interrupted == 25
    assert done.mistakes == []


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
def test_threads_that_call_compile_and_reset_get_eagers_values():
    done = threads(8, 4, seed=1)
    assert done.calls >= 8
    assert done.mistakes == []
