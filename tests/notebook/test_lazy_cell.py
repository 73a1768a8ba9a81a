"""`%%compile --lazy` records what a cell does, and tags nothing."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("IPython")

import torch  # noqa: E402
from IPython.core.error import UsageError  # noqa: E402

import jitmagic  # noqa: E402


def test_cell_is_recorded(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cell = (
        "import torch, jitmagic\nx = torch.randn(8)\ndef double(t):\n    return t * 2\n"
        "y = double(x).relu() + 1\nseen = len(jitmagic.lazy.pending())\ny"
    )
    value = loaded.run_cell_magic("compile", "--lazy", cell)
    names = loaded.user_ns
    assert names["seen"] == 3 and value is names["y"]
    assert torch.equal(value, (names["x"] * 2).relu() + 1)
    assert jitmagic.api.handle_of(names["double"]) is None
    shown = capsys.readouterr().out
    assert "recorded 3 operations, which ran as 1 graph" in shown
    assert not jitmagic.lazy.pending()


def test_cell_that_raises_ends_the_block(loaded: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        loaded.run_cell_magic(
            "compile", "--lazy --quiet", "import torch\nz = torch.ones(2) + 1\n1 / 0"
        )
    assert not jitmagic.lazy.pending()
    assert loaded.user_ns["z"].tolist() == [2.0, 2.0]


def test_options_of_tagged_code_are_refused(loaded: Any) -> None:
    with pytest.raises(UsageError, match="--fullgraph is an option of tagged code"):
        loaded.run_cell_magic("compile", "--lazy --fullgraph", "1")
