"""`jitmagic.lazy()`: what is pending, when it runs, kernels, the cache, errors and threads."""

from __future__ import annotations

import gc
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.lazy_mode.compiling import compile_records


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    jitmagic.reset()


def kernels_of(function: Callable[[], Any]) -> list[int]:
    """The kernels of each graph that the function compiles, run once inside a block."""
    before = list(map(id, compile_records()))
    with jitmagic.lazy():
        kept = function()
    del kept
    return [record.kernels for record in compile_records() if id(record) not in before]


# ----------------------------------------------------------------------------- what is pending


def test_pending_shows_operations_shapes_and_lines() -> None:
    x = torch.randn(3, 4)
    with jitmagic.lazy():
        y = (x + 1).sum(0)
        found = jitmagic.lazy.pending()
        assert [call.name for call in found] == ["add", "sum"]
        assert found[1].results == (((4,), torch.float32),)
        line = found[0].line
        assert line is not None and line.text == "y = (x + 1).sum(0)"
        assert line.filename == __file__
        assert "2 pending operations\n  add -> float32[3, 4]  test_recording.py:" in repr(found)
        assert y.shape == (4,)
        assert len(jitmagic.lazy.pending()) == 2
    assert not jitmagic.lazy.pending()


def test_flush_runs_what_is_pending() -> None:
    x = torch.randn(3)
    with jitmagic.lazy():
        y = x * 2 + 1
        jitmagic.lazy.flush()
        assert not jitmagic.lazy.pending()
        z = y + 1
        assert len(jitmagic.lazy.pending()) == 1
    assert torch.equal(z, x * 2 + 1 + 1)


def test_line_of_module_is_the_users() -> None:
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    with jitmagic.lazy():
        loss = layer(x).sum()
        loss.backward()
        lines = {call.line.text for call in jitmagic.lazy.pending() if call.line}
    assert lines == {"loss = layer(x).sum()", "loss.backward()"}


def test_blocks_nest_and_end_by_exceptions() -> None:
    x = torch.randn(3)
    with pytest.raises(ZeroDivisionError), jitmagic.lazy():
        with jitmagic.lazy():
            y = x + 1
        assert not jitmagic.lazy.pending()
        z = y * 2
        _ = 1 / 0
    assert torch.equal(z, (x + 1) * 2)
    assert not jitmagic.lazy.pending()
    assert torch.equal(x + 1, y)


def test_dead_results_are_not_computed() -> None:
    x = torch.randn(3)
    with jitmagic.lazy():
        before = jitmagic.lazy.counts()
        for _ in range(10):
            _ = x.exp() + 1
        del _
    after = jitmagic.lazy.counts()
    assert after.recorded - before.recorded == 20
    assert after.compiled == before.compiled and after.replayed == before.replayed


def test_computed_tensors_are_ordinary() -> None:
    x = torch.randn(3)
    with jitmagic.lazy():
        y = x + 1
        v = y[1:]
    assert torch._C._dispatch_keys(y) == torch._C._dispatch_keys(x)
    assert torch._C._dispatch_keys(v) == torch._C._dispatch_keys(x[1:])
    assert v.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert y.untyped_storage().nbytes() == 12
    y.resize_(6).zero_()
    y.set_(x.untyped_storage())
    assert torch.equal(y, x)


# --------------------------------------------------------------------------- kernels and cache


def test_chain_is_one_kernel() -> None:
    x = torch.randn(64, 64)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(5):
            y = (y * 2 + 1).relu().tanh()
        return y

    assert kernels_of(chain) == [1]


def test_chain_with_reduction_is_one_kernel() -> None:
    x = torch.randn(64, 64)
    assert kernels_of(lambda: ((x * 2).exp() - 1).sum(1)) == [1]
    assert kernels_of(lambda: (x - x.mean(1, keepdim=True)).softmax(1)) == [1]


def test_writes_to_pending_memory_join_the_chain() -> None:
    x = torch.randn(64, 64)

    def write() -> torch.Tensor:
        y = x * 2
        y.add_(1).relu_()
        return y

    assert kernels_of(write) == [1]


def test_forward_and_backward_of_a_chain_are_one_graph() -> None:
    w = torch.randn(64).requires_grad_()

    def step() -> Any:
        loss = (w.tanh() * 2).exp().sum()
        loss.backward()
        return loss

    assert len(kernels_of(step)) == 1
    found, w.grad = w.grad, None
    (w.tanh() * 2).exp().sum().backward()
    torch.testing.assert_close(found, w.grad)


def test_second_run_compiles_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        x = torch.randn(8, 4)
        with jitmagic.lazy():
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    step()
    records, before = len(compile_records()), jitmagic.lazy.counts()
    assert records
    for _ in range(3):
        step()
    after = jitmagic.lazy.counts()
    assert len(compile_records()) == records and after.compiled == before.compiled
    assert after.cached > before.cached


def test_constants_and_layouts_are_part_of_the_record() -> None:
    def run(x: torch.Tensor, scale: float) -> torch.Tensor:
        with jitmagic.lazy():
            return (x * scale + 1).relu()

    for x in (
        torch.randn(4, 4),
        torch.randn(4, 4).t(),
        torch.randn(2, 8),
        torch.randn(4, 4).double(),
    ):
        for scale in (1.0, 2.0, 2, -1):
            assert torch.equal(run(x, scale), (x * scale + 1).relu())


def test_liveness_is_part_of_the_record() -> None:
    x = torch.randn(4)
    with jitmagic.lazy():
        y = x + 1
        z = y * 2
    assert torch.equal(z, (x + 1) * 2) and torch.equal(y, x + 1)
    with jitmagic.lazy():
        z = (x + 1) * 2
    assert torch.equal(z, (x + 1) * 2)


# ------------------------------------------------------------------------------------------- errors


def test_error_of_data_names_the_line_that_recorded_it() -> None:
    x, rows = torch.randn(3, 4), torch.tensor([0, 7])
    with jitmagic.lazy():
        before = x + 1
        wrong = x[rows]  # recorded here
        after = wrong * 2
        with pytest.raises(IndexError, match=r"index 7 is out of bounds") as raised:
            after.tolist()
        assert f"{__file__}:" in str(raised.value)
        line = wrong_line(test_error_of_data_names_the_line_that_recorded_it, "# recorded here")
        assert f":{line}, in test_error_of_data" in str(raised.value)
        assert torch.equal(before, x + 1)
        for lost in (wrong, after):
            with pytest.raises(IndexError, match="recorded by jitmagic"):
                lost.tolist()
        again = before * 2
    assert torch.equal(again, (x + 1) * 2)


def wrong_line(function: Callable[..., object], mark: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if mark in line)


def test_error_at_the_end_of_the_block() -> None:
    x, rows = torch.randn(3, 4), torch.tensor([0, 7])
    with pytest.raises(IndexError, match="recorded by jitmagic"), jitmagic.lazy():
        wrong = x[rows] + 1
    del wrong
    assert torch.equal(x + 1, x + 1)


def test_failed_compile_runs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken stage")

    monkeypatch.setattr("jitmagic.compile.pipeline.trace_joint", broken)
    x = torch.randn(4)
    with pytest.warns(jitmagic.FallbackWarning, match="broken stage"), jitmagic.lazy():
        y = (x + 1).relu()
    assert torch.equal(y, (x + 1).relu())


# ------------------------------------------------------------------------------- other threads


def test_another_thread_reads_a_pending_tensor() -> None:
    x, found = torch.randn(100), []
    with jitmagic.lazy():
        y = (x * 2).sin()
        thread = threading.Thread(target=lambda: found.append((y + 1).tolist()))
        thread.start()
        thread.join()
        z = y * 2
    torch.testing.assert_close(torch.tensor(found[0]), (x * 2).sin() + 1)
    torch.testing.assert_close(z, (x * 2).sin() * 2)


def test_threads_record_for_themselves() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = torch.randn(16, generator=torch.Generator().manual_seed(seed))
            for step in range(30):
                with jitmagic.lazy():
                    y = x * (step % 3) + seed
                    z = y.relu().sum() + step % 3
                    assert len(jitmagic.lazy.pending()) == 5
                torch.testing.assert_close(z, (x * (step % 3) + seed).relu().sum() + step % 3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_read_the_same_pending_tensors() -> None:
    x = torch.randn(64)
    for _ in range(20):
        found: list[list[float]] = []
        with jitmagic.lazy():
            parts = [(x * number).exp() for number in range(4)]
            readers = [
                threading.Thread(target=lambda part=part: found.append(part.tolist()))
                for part in parts * 2
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        expected = sorted([(x * n).exp().tolist() for n in range(4)] * 2)
        torch.testing.assert_close(torch.tensor(sorted(found)), torch.tensor(expected))


def test_other_threads_are_not_recorded() -> None:
    found = []
    with jitmagic.lazy():
        thread = threading.Thread(
            target=lambda: found.append((torch.ones(2) + 1, len(jitmagic.lazy.pending())))
        )
        thread.start()
        thread.join()
    assert found[0][1] == 0 and torch.equal(found[0][0], torch.full((2,), 2.0))


# ---------------------------------------------------------------------------- memory and speed


def test_nothing_is_leaked() -> None:
    x = torch.randn(10)

    def run() -> None:
        with jitmagic.lazy():
            y = x + 1
            z = (y * 2).view(2, 5)
            z[0] = 0
            y.sum().item()

    run()
    gc.collect()
    before = sum(isinstance(found, torch.Tensor) for found in gc.get_objects())
    for _ in range(20):
        run()
    gc.collect()
    assert sum(isinstance(found, torch.Tensor) for found in gc.get_objects()) <= before


def seconds_per_call(
    function: Callable[[torch.Tensor], torch.Tensor], block: AbstractContextManager[object]
) -> float:
    """The time of one operation. Inside a recorded block that is recording alone, since the results
    are dropped before its end.
    """
    x, count = torch.randn(8, 64), 500
    with block:
        y = x + 0
        started = time.perf_counter()
        for _ in range(count):
            y = function(y)
        seconds = (time.perf_counter() - started) / count
        del y
    return seconds


def test_recording_costs_at_most_two_microseconds() -> None:
    """On a busy machine: not much more than a call in eager, which is as busy there."""
    x = torch.randn(8, 64)
    costs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda y: y + x,
        "relu": lambda y: y.relu(),
        "softmax": lambda y: y.softmax(-1),
    }
    for name, function in costs.items():
        recorded = min(seconds_per_call(function, jitmagic.lazy()) for _ in range(30))
        eager = min(seconds_per_call(function, nullcontext()) for _ in range(30))
        assert recorded < max(2e-6, 3 * eager), f"{name}: {recorded * 1e6:.2f} us"
