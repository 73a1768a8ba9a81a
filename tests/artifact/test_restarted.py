"""A second process compiles nothing, also where sizes vary."""

from __future__ import annotations

from pathlib import Path

import pytest

from .restarted import in_two_processes


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("case", ["infer", "step"])
def test_programs_with_short_batches(case: str, mode: str, tmp_path: Path) -> None:
    first, second = in_two_processes(case, "cpu", mode, cache=str(tmp_path))
    assert first["compiled"]
    assert not second["compiled"]
    assert second["got"] == first["got"]
    for answer in (first, second):
        assert answer["got"] == pytest.approx(answer["want"], rel=1e-4)
