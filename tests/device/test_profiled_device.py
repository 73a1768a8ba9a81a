"""Calls on a GPU in profiles: kernels under the user's function, ranges for NVTX's tools."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import jitmagic
from tests.processes import run_python

pytestmark = pytest.mark.device

FILE = Path(__file__).name
KEEP = {"keep": "compiled"}


def step(x: Tensor, y: Tensor) -> Tensor:
    shifted = x * y + 2
    return torch.relu(shifted).sum(-1)


def trace_of(prof: Any, folder: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [event for event in events if "dur" in event]


def is_within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    ends = outer["ts"] + outer["dur"]
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= ends + 1


@pytest.mark.parametrize("trains", [False, True])
def test_kernels_are_launched_within_the_users_function(trains: bool, tmp_path: Path) -> None:
    """A kernel's correlation leads to its launch, which stands in the range of its name."""
    tagged = jitmagic.jit(step, options=KEEP)
    x = torch.randn(64, 512, device="cuda", requires_grad=trains)
    y = torch.randn(64, 512, device="cuda")

    def call() -> None:
        result = tagged(x, y)
        if trains:
            result.sum().backward()
        torch.cuda.synchronize()

    call()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        call()
    events = trace_of(prof, tmp_path)
    ranges = [e for e in events if FILE in e["name"] and e.get("cat") != "gpu_user_annotation"]
    launches = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert kernels
    owners: set[str] = set()
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        owners |= {outer["name"].split(" (")[0] for outer in ranges if is_within(launch, outer)}
    assert {"step", "forward of step"} <= owners
    assert any(name.startswith("kernel 0 of step: ") for name in owners)
    assert ("backward of step" in owners) == trains


# Prints the name of each range that is pushed: what a tool sees that is attached from outside.
LISTENER = """
#include <stdio.h>
#include <stddef.h>
typedef struct { size_t size; int (*table)(int module, void ****out, unsigned *count); } callbacks;
static int level = 0;
static int push(const char *name) { printf("push %s\\n", name); fflush(stdout); return level++; }
static int pop(void) { return --level; }
int InitializeInjectionNvtx2(const void *(*export_table)(unsigned)) {
  const callbacks *known = export_table(1);
  void ***functions;
  unsigned count = 0;
  if (!known || !known->table(1, &functions, &count) || count < 12) return 0;
  *functions[9] = (void *)push;  /* nvtxRangePushA */
  *functions[11] = (void *)pop;
  return 1;
}
"""

PROGRAM = """
import torch, jitmagic
from tests.device.test_profiled_device import KEEP, step
tagged = jitmagic.jit(step, options=KEEP)
x = torch.randn(8, 64, device="cuda")
tagged(x, x)
with torch.autograd.profiler.emit_nvtx():
    tagged(x, x)
torch.cuda.synchronize()
"""


def test_ranges_are_pushed_for_nvtx(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "listener.c").write_text(LISTENER)
    library = tmp_path / "listener.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "listener.c"], check=True
    )
    ended = run_python(PROGRAM, NVTX_INJECTION64_PATH=str(library))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    pushed = [line.removeprefix("push ") for line in lines if line.startswith("push ")]
    names = [name.split(" (")[0] for name in pushed if FILE in name]
    assert names[:2] == ["step", "forward of step"]
    assert names[2].startswith("kernel 0 of step: ")
