"""Generated kernels on another processor: they are compiled for aarch64 and run by an emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.devices import Target
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.schedule import schedule
from tests.kernel.building import ARM, ISAS, emulated, pointer
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs

from .accuracy import compare

pytestmark = pytest.mark.skipif(
    ARM not in ISAS, reason="no aarch64 compiler (g++-aarch64-linux-gnu) or emulator (qemu-user)"
)

TARGET = Target("cpu", "cpp", "a test", "neon", 4, 2, 1 << 20)


@pytest.mark.parametrize("name", PROGRAMS)
def test_generated_kernels_for_neon(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    graph, expected = record(program.fn, *map(clone, inputs))
    loops = lower(graph, "test")
    plan, source = render(schedule(loops, TARGET, Options()), TARGET)
    kernels = {}
    if source is not None:
        text = tmp_path / "kernels.cpp"
        text.write_text(source.text)
        remote = emulated(text)
        kernels = {
            symbol: lambda tensors, at=getattr(remote, f"@{symbol}"): at(*map(pointer, tensors))
            for symbol in source.symbols
        }
    ours, eager = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got = PlanRunner(plan, kernels)(*ours)
    exact = run(loops, [clone(x) for x in inputs], "float64")
    with torch.no_grad():
        program.fn(*eager)
    for a, b, c in zip(got, expected, exact, strict=True):
        compare(a, b, c)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
