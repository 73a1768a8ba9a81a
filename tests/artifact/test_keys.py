"""Which entries are kept on disk, and what their keys depend on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic import extend


def program(x: Tensor) -> Tensor:
    return torch.softmax(x @ x, 1) * 2


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    jitmagic.reset()


def stages(folder: Path, **chosen: Any) -> list[str]:
    """Call the program, tagged anew, and return the stages of its compile."""
    options = {"cache_dir": str(folder), "persist": True, "keep": "compiled"}
    run = jitmagic.jit(program, options=options, **chosen)
    x = torch.randn(8, 8)
    torch.testing.assert_close(run(x), program(x))
    return [
        stage.stage for record in jitmagic.api.handle_of(run).journal for stage in record.stages
    ]


def test_a_found_entry_has_the_choices_that_were_measured(tmp_path: Path) -> None:
    assert any("tune" in stage for stage in stages(tmp_path, mode="max-autotune"))
    assert "trace" in stages(tmp_path)  # other options, another entry
    assert stages(tmp_path, mode="max-autotune") == ["find"]


def test_nothing_is_kept_or_found_under_a_registered_pass(tmp_path: Path) -> None:
    with extend.register_pass("captured", lambda graph, context: None, name="as it was"):
        assert "keep" not in stages(tmp_path)
    assert "keep" in stages(tmp_path)
    with extend.register_pass("captured", lambda graph, context: None, name="as it was"):
        assert "find" not in stages(tmp_path)
    assert stages(tmp_path) == ["find"]


def test_a_registered_backend_changes_no_other_entry(tmp_path: Path) -> None:
    assert "keep" in stages(tmp_path)
    with extend.register_backend("mine", lambda graph, inputs: graph.forward):
        assert stages(tmp_path) == ["find"]
        assert "keep" not in stages(tmp_path, backend="mine")
