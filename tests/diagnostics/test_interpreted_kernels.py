"""Reports say which kernels are interpreted, and what has replaced them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitmagic
from jitmagic.devices import cpu
from jitmagic.runtime import background_builds


def test_interpreted_kernels_are_named() -> None:
    fn = jitmagic.jit(lambda x: torch.relu(x * 3 + 2), options={"cpu_tier": "blocks"})
    found = jitmagic.explain(fn)(torch.randn(8, 9))
    assert "kernels  interpreted\n" in str(found)
    assert "lanes" in found.kernels[0].text


def test_kernels_that_replace_interpreted_ones_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not cpu._find_cxx(None)[0]:
        pytest.skip("no C++ compiler")
    monkeypatch.delenv("JITMAGIC_KEEP")
    monkeypatch.setattr(background_builds, "usable_processors", lambda: 2)
    fn = jitmagic.jit(lambda x: torch.relu(x * 3 + 5), options={"cache_dir": str(tmp_path)})
    fn(torch.randn(8, 9))
    assert jitmagic.wait(60)
    text = str(jitmagic.explain(fn)(torch.randn(8, 9)))
    assert "kernels  interpreted at first; those of " in text
