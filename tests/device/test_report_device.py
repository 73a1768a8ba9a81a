"""Capsules of what a GPU runs: replayed there, and said to be for a GPU elsewhere."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import jitmagic

pytestmark = pytest.mark.device

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "CUDA graphs": {"mode": "reduce-overhead"},
    "autotuned": {"mode": "max-autotune-no-cudagraphs"},
}


@pytest.mark.usefixtures("calls_are_compared")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_capsules_replay(
    mode: str, requires_grad: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tagged = jitmagic.jit(lambda x: (torch.tanh(x * 2) @ x.T).sum(-1), **MODES[mode])
    for _ in range(4):
        result = tagged(torch.randn(8, 8, device="cuda", requires_grad=requires_grad))
        if requires_grad:
            result.sum().backward()
    (capsule,) = jitmagic.report(tmp_path / "out", tagged).capsules
    assert list(capsule.glob("*_triton.py"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(capsule / "replay.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert ended.value.code == 0, told
    assert told.startswith("agrees with eager (1 graph")
    facts = json.loads((capsule / "capsule.json").read_text())
    assert facts["options"] == MODES[mode]
    assert {given["device"] for given in facts["inputs"]} == {"cuda:0"}
