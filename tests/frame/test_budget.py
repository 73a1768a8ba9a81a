"""options.compile_seconds: a compile that takes too long is given up in any stage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import jitmagic
from jitmagic import budget
from jitmagic.api import handle_of
from jitmagic.autograd.mincut import FlowNetwork
from jitmagic.compile import executable, pipeline, tracing
from jitmagic.errors import FallbackWarning, OptionError, Unsupported
from jitmagic.options import make_options
from jitmagic.records import TookTooLong
from jitmagic.runtime.numba_kernels import _names

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def rows(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.tanh(x @ x.T @ x) * 0.5
    return x


class Clock:
    """Replaces the clock of budgets: a stage that begins takes an hour."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._patch = monkeypatch
        monkeypatch.setattr(budget.time, "monotonic", lambda: self.now)

    def jump_in(self, module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.now += 3600
            return real(*args, **kwargs)

        self._patch.setattr(module, name, slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


STAGES = [
    (tracing, "trace", "trace"),
    (pipeline, "trace_joint", "joint"),
    (executable, "lower", "forward: lower"),
    (executable, "schedule", "forward: schedule"),
    (executable, "render", "forward: render"),
]


@pytest.mark.parametrize(("module", "name", "stage"), STAGES, ids=[one[2] for one in STAGES])
def test_a_timeout_in_any_stage_falls_back_to_eager_and_the_next_compile_succeeds(
    module: Any, name: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = jitmagic.jit(rows)
    with monkeypatch.context() as patch:
        Clock(patch).jump_in(module, name)
        with pytest.warns(
            FallbackWarning, match=r"(?s)longer than \d+ seconds \(.*compile_seconds"
        ):
            torch.testing.assert_close(fn(X, 20), rows(X, 20))
        torch.testing.assert_close(fn(X, 20), rows(X, 20))  # by the entry, without another compile
    handle = handle_of(fn)
    (record,) = handle.journal
    assert isinstance(record.outcome, TookTooLong)
    assert record.stages[-1].stage == stage
    torch.testing.assert_close(fn(X.double(), 3), rows(X.double(), 3))
    assert str(list(handle.journal)[-1].outcome) == "compiled", "other calls are"


def test_a_trace_timeout_applies_to_calls_with_the_same_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(budget.time, "monotonic", lambda: next(ticks))
    fn = jitmagic.jit(rows, options={"compile_seconds": 30.0})
    with pytest.warns(FallbackWarning, match=r"\(trace"):
        torch.testing.assert_close(fn(X, 40), rows(X, 40))
    (entry,) = handle_of(fn).dispatcher.entries
    fn(X, 40)
    assert entry.hits == 2
    assert not entry.check((X, 41)), "the facts known by then are its guards"


@pytest.mark.parametrize("asked", [{"fullgraph": True}, {"options": {"on_error": "raise"}}])
def test_fullgraph_raises_on_a_timeout(asked: Any, clock: Clock) -> None:
    clock.jump_in(pipeline, "trace_joint")
    with pytest.raises(Unsupported, match="given up"):
        jitmagic.jit(rows, **asked)(X, 2)


def test_a_backward_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, x = jitmagic.jit(rows), X.clone().requires_grad_()
    loss = fn(x, 5).sum()
    with monkeypatch.context() as patch:
        Clock(patch).jump_in(executable, "lower")
        with pytest.warns(FallbackWarning, match="backward of rows is replayed op by op"):
            (got,) = torch.autograd.grad(loss, x)
    (wanted,) = torch.autograd.grad(rows(x, 5).sum(), x)
    torch.testing.assert_close(got, wanted)


def test_limits_nest_and_belong_to_the_thread() -> None:
    with budget.within(1000):
        with budget.within(2000):
            assert budget.left() <= 1000
        with budget.within(0.0), pytest.raises(budget.OutOfTime):
            while True:
                budget.check()
        budget.check()
    assert budget.left() == float("inf")


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITMAGIC_COMPILE_SECONDS")
    assert make_options().budget == 60
    assert make_options(mode="max-autotune").budget == 600
    monkeypatch.setenv("JITMAGIC_COMPILE_SECONDS", "5")
    assert make_options(mode="max-autotune").budget == 5
    monkeypatch.setenv("JITMAGIC_COMPILE_SECONDS", "soon")
    with pytest.raises(OptionError, match="JITMAGIC_COMPILE_SECONDS"):
        make_options()


def test_what_a_users_backend_gives_is_used_however_long_it_takes(clock: Clock) -> None:
    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        clock.now += 3600
        return gm

    fn = jitmagic.jit(rows, backend=backend)
    torch.testing.assert_close(fn(X, 3), rows(X, 3))
    (record,) = handle_of(fn).journal
    assert str(record.outcome) == "compiled"


def test_a_minimum_cut_is_given_up(clock: Clock) -> None:
    network = FlowNetwork(3)
    network.edge(0, 1, 2), network.edge(1, 2, 1)
    with budget.within(1.0):
        clock.now += 2
        with pytest.raises(budget.OutOfTime):
            network.cut(0, 2)
    assert network.cut(0, 2)[0] == 1


def test_no_kernel_of_numba_is_begun_after_the_deadline(clock: Clock) -> None:
    kernel = _names()["kernel"]
    with budget.within(1.0):
        clock.now += 2
        with pytest.raises(budget.OutOfTime):
            kernel(rows)


def test_the_default_is_20_seconds_in_cells_and_60_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITMAGIC_COMPILE_SECONDS", raising=False)
    assert make_options().budget == 60.0
    shell = InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "jitmagic")
        ran = shell.run_cell("%%compile\nimport torch\ndef step(x):\n    return x + 1\n")
        assert ran.success
        options = handle_of(shell.user_ns["step"]).options
        shell.run_line_magic("unload_ext", "jitmagic")
    finally:
        InteractiveShell.clear_instance()  # tests of notebooks have a shell of another class
    assert options.budget == 20.0
    assert jitmagic.jit(rows) is not None
    assert handle_of(jitmagic.jit(rows)).options.budget == 60.0
