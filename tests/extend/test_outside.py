"""A package outside the repository, installed by pip: it works by its entry points alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, run_forked

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import torch
import jitmagic
from jitmagic_outside import ran, soft_cap

torch.manual_seed(0)

def program(q, k, v):
    mixed = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
    return soft_cap(mixed.sin(), 0.5).sum(-1)

def gradients(fn):
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3)]
    result = fn(*given)
    result.sum().backward()
    return [result, *(x.grad for x in given)]

expected = gradients(program)
ran.clear()
fast = jitmagic.jit(program, fullgraph=True)
for _ in range(2):
    torch.testing.assert_close(gradients(fast), expected)
print(ran)
ran.clear()
jitmagic.jit(program, backend="outside")(*[torch.ones(2, 3, 8, 4)] * 3)
print("outside" in ran)
"""
DEVICE = """
import sys
sys.path.insert(0, {folder!r})
import torch
import jitmagic
from jitmagic_toy import on_host, on_toy

def program(x):
    return (x * 2 + 1).exp().sum(-1)

fast, x = jitmagic.jit(program, fullgraph=True), torch.randn(4, 8)
torch.testing.assert_close(on_host(fast(on_toy(x))), program(x))
print(torch.device("toy").type, *jitmagic.extend.devices.RENDERERS.rows)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the package is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    copy = shutil.copytree(ROOT / "tests" / "extend" / "outside", source / "outside")
    shutil.copy(ROOT / "demos" / "extend_device.py", copy / "jitmagic_toy.py")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, str(target), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_installed_package_extends_jitmagic_by_its_entry_points(installed: Path) -> None:
    done = run_forked(PROGRAM.format(folder=str(installed)), imported="torch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['fuse_attention']", "True"]


def test_installed_package_brings_a_device_with_its_renderer(installed: Path) -> None:
    done = run_forked(DEVICE.format(folder=str(installed)), imported="torch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["toy c"]
