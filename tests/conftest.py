"""Options shared by all test folders."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files in tests/goldens"
    )


def pytest_configure() -> None:
    torch.manual_seed(0)  # for what modules make while they are imported


def pytest_collection_finish() -> None:
    """Nearly a million objects stay from here to the end: a full collection walks the others only,
    0.1 s instead of 0.6 s each time.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left at the end is looked for by libraries


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in parallel, those of a file share a process, its fixtures and its caches;
    all that need the GPU share one. A scheduler of our own: xdist_group does nothing under
    pytest 9.2 with xdist 3.8, which writes groups into a field that pytest does not read any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "device" if file.startswith("tests/device/") else file

    return ByFile(config, log)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def seeds_without_stacks() -> Iterator[None]:
    """torch.manual_seed writes down the whole stack for each kind of GPU that nobody used yet, for
    errors to come: three times for each seed, and every test seeds.
    """
    without = SimpleNamespace(**{**vars(traceback), "format_stack": list})
    with pytest.MonkeyPatch.context() as patch:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            patch.setattr(kind, "traceback", without, raising=False)
        yield


@pytest.fixture(autouse=True)
def same_data_every_time() -> None:
    """A test that fails once fails again; one that wants another stream seeds it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_timing_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled variants and eager alternate in all their calls that are timed; none is given up."""
    monkeypatch.setattr("jitmagic.frame.comparison.judge", lambda compiled, eager: None)


@pytest.fixture(autouse=True)
def distributions_check_their_arguments() -> Iterator[None]:
    """The first torch.compile of a process switches that off for everybody."""
    yield
    torch.distributions.Distribution.set_default_validate_args(__debug__)


@pytest.fixture(autouse=True, scope="session")
def two_threads() -> Iterator[None]:
    """Fusion weighs the number of threads: kernel counts are stated for two of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Products of float32 may be rounded to it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)
