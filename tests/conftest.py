"""Options shared by all test folders."""

from __future__ import annotations

import gc
import logging
import os
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

gc.disable()  # until `pytest_collection` has ended: torch is a million objects itself

import torch  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files in tests/goldens"
    )


def pytest_configure() -> None:
    torch.manual_seed(0)  # for what modules make while they are imported
    # Else every other call is eager's, and a test of several compares eager with itself.
    os.environ.setdefault("JITMAGIC_KEEP", "compiled")
    os.environ.setdefault("JITMAGIC_PERSIST", "0")  # tests look at the stages of a compile
    os.environ.setdefault("JITMAGIC_COMPILE_SECONDS", "600")  # machines of tests may be busy


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nearly a million objects are made here and stay to the end. Collections meanwhile find next
    to nothing, in 6 s of 20; later ones walk the others only, in 0.1 s instead of 0.6 s.

    Each compile leaves ten thousands of objects in cycles, and every second test had all others
    walked for them, a fifth of a file's time. They are looked for once in a million now.
    """
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 10)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left at the end is looked for by libraries


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return ours, unless `--dist` asks for another: ours has one process for all of tests/device,
    of which `--dist worksteal` makes as many as `-n` says.
    """
    from tests.scheduling import ByFile

    return ByFile(config, log) if config.getoption("dist") == "load" else None


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker tells what counts: how the call ended, and what was skipped or failed elsewhere. As
    pytest does it, six messages a test take both sides as long as most tests' own work.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Logged(logging.Handler):
    """Remembers what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True, scope="session")
def logs_are_handled() -> Iterator[None]:
    """What nobody listens to is dropped, and not printed. pytest's own plugin is off: it listens at
    torch's 43 loggers anew for each part of each test.
    """
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.fixture(autouse=True, scope="module")
def collections_walk_one_file() -> Iterator[None]:
    """What a file leaves behind for good (caches, modules, compiled code) is not walked again: the
    full collections of four files take 3.9 s instead of 13.7 s.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def calls_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code and eager run in turns, and the faster is kept, as they do for users. Kernels
    are built before the first call, so that no comparison waits for a compiler.
    """
    monkeypatch.delenv("JITMAGIC_KEEP")
    for module in ("compile.executable", "compile.template", "runtime.load"):
        name = f"jitmagic.{module}.is_interpreted_meanwhile"
        monkeypatch.setattr(name, lambda source, target, options: False)


@pytest.fixture
def logged() -> Iterator[Logged]:
    """What is logged from here to the end of the test, at the levels that loggers have."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


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
def same_state_every_time() -> None:
    """A test that fails once fails again; one that wants another stream seeds it. Distributions
    check their arguments: the first torch.compile of a process switches that off for everybody.
    """
    torch.manual_seed(0)
    torch.distributions.Distribution.set_default_validate_args(__debug__)


@pytest.fixture(autouse=True, scope="session")
def no_timing_decides() -> Iterator[None]:
    """Compiled variants and eager alternate in all their calls that are timed; none is given up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitmagic.frame.timing.comparison.judge", lambda compiled, eager: None)
        yield


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
