"""Tests that need a CUDA GPU: skipped, with the reason, where there is none."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from jitmagic.runtime.cuda_graphs import partitions, refusals


def missing() -> str:
    """What keeps these tests from running here; empty when nothing does."""
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if find_spec("triton") is None:
        return "triton is not installed"
    if find_spec("jitmagic._runtime") is None:
        return "jitmagic._runtime is not built"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if item.get_closest_marker("device") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Kernels of these tests are compiled anew, once."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    patch.setenv("JITMAGIC_CACHE_DIR", str(tmp_path_factory.mktemp("jitmagic")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def small_graphs_are_recorded(monkeypatch: pytest.MonkeyPatch):
    """Record graphs of few kernels too, which most of these tests have."""
    monkeypatch.setattr(refusals, "REPLAY_TIME", 0)
    monkeypatch.setattr(partitions, "PART_TIME", 0)
