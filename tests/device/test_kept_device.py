"""Compiled code that leaves its process, on a GPU: the cache on disk, files, lazy recording, and
weights of eight bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from tests.artifact.restarted import in_two_processes
from tests.lazy import programs
from tests.lazy.test_programs import check, flattened, recorded
from tests.processes import run_python

pytestmark = pytest.mark.device


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("case", ["infer", "step"])
def test_a_second_process_compiles_nothing(case: str, mode: str, tmp_path: Path) -> None:
    answers = in_two_processes(case, "cuda", mode, cache=str(tmp_path))
    first, second = answers
    assert first["compiled"]
    assert not second["compiled"]
    assert second["got"] == pytest.approx(first["got"], rel=1e-6)
    for answer in answers:
        assert answer["got"] == pytest.approx(answer["want"], rel=1e-3)


class Model(nn.Module):
    """With products, pointwise operations, a reduction, and a buffer; seeded weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(24, 40)
        self.register_buffer("scale", torch.rand(40))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.linear(x)) * self.scale
        return torch.softmax(y + torch.arange(40, device=x.device), -1)


SAVES = """
    import sys, torch, jitmagic
    from tests.device.test_kept_device import Model
    path, device, target, sized = sys.argv[1:5]
    assert torch.cuda.is_available() == (device == "cuda")
    dynamic = {"x": {0: (2, 64)}} if sized else None
    with torch.no_grad():
        x = torch.randn(9, 24, device=device)
        jitmagic.save(Model().to(device), path, x, dynamic=dynamic, target=target or None)
"""


@pytest.mark.parametrize("sized", ["", "sized"])
@pytest.mark.parametrize(("device", "target"), [("cpu", "sm_90"), ("cuda", "")])
def test_a_file_of_another_process_runs(
    device: str, target: str, sized: str, tmp_path: Path
) -> None:
    if target and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"this GPU is no {target}")
    path = str(tmp_path / "model.jmz")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    done = run_python(SAVES, path, device, target, sized, **hidden)
    assert done.returncode == 0, done.stderr
    loaded, model = jitmagic.load(path), Model().cuda()
    for rows in (9, 2, 64) if sized else (9,):
        x = torch.randn(rows, 24, device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


# A failed assertion on a GPU ends the use of the GPU in its process, also in eager.
LAZY = sorted(programs.PROGRAMS.keys() - {"error_of_data_in_the_middle"})


@pytest.mark.parametrize("name", LAZY)
def test_lazy_programs_on_a_gpu(name: str) -> None:
    program = programs.PROGRAMS[name]
    with torch.device("cuda"):
        try:
            eager, exact = flattened(program(torch.float32)), flattened(program(torch.float64))
        except Exception as error:  # noqa: BLE001 - whatever it needs of the CPU's memory
            pytest.skip(f"it does not run on a GPU in eager: {error}")
        for _ in range(2):
            for values in zip(recorded(program, torch.float32), eager, exact, strict=True):
                check(*values)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_weights_of_eight_bits(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32, bias=False))
    model: Any = jitmagic.quantize_weights(layers.eval().cuda(), dtype, 32)
    run = jitmagic.jit(
        lambda x: model(x), options={"freeze": True, "on_error": "raise", "keep": "compiled"}
    )
    x = torch.randn(rows, 64, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-4)
