"""Installed packages: modules that define layers are compiled, others run unchanged."""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import jitmagic
from jitmagic.frame import never_hooked
from jitmagic.records import COMPILED

LAYERS = """
import torch
from torch import nn
class Block(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return helper(x)
def helper(x):
    print("in the library")
    return x + 1
"""
DRIVER = """
def run(module, x):
    print("driving")
    return module(x) + 1
"""


def installed(folder: Path, name: str, text: str) -> types.ModuleType:
    path = folder / f"{name}.py"
    path.write_text(text)
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder count as the folder of installed packages."""
    folders = ((f"{tmp_path}/", never_hooked._PACKAGE), *never_hooked._library_folders())
    monkeypatch.setattr(never_hooked, "_library_folders", lambda: folders)
    never_hooked._library.cache_clear()
    yield tmp_path
    never_hooked._library.cache_clear()
    for name in ("jm_layers", "jm_driver"):
        sys.modules.pop(name, None)


def test_layers_of_an_installed_package_are_compiled_after_a_break(packages: Path):
    layers, driver = (
        installed(packages, name, text)
        for name, text in (("jm_layers", LAYERS), ("jm_driver", DRIVER))
    )

    @jitmagic.jit
    def f(module, x):
        return driver.run(module, x.sin())

    x = torch.ones(3)
    assert torch.equal(f(layers.Block(), x), x.sin() * 2 + 2)
    names = {record.name for record in jitmagic.api.handle_of(f).journal}
    assert {"forward", "helper"} <= names
    assert "run" not in names
    assert all(record.outcome == COMPILED for record in jitmagic.api.handle_of(f).journal)


def test_folders_are_those_of_sysconfig() -> None:
    assert never_hooked._paths_of_python().items() <= sysconfig.get_paths().items()
