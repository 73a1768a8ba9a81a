"""options={"background": "auto"}: what takes long is compiled on another thread, once it pays."""

from __future__ import annotations

import gc
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import records
from jitmagic.api import handle_of, tagged_handle
from jitmagic.budget import OutOfTime
from jitmagic.compile import pipeline
from jitmagic.errors import FallbackWarning
from jitmagic.frame.timing import pay_back
from jitmagic.frame.timing.pay_back import has_free_processor
from tests.processes import run_forked

AUTO = {"background": "auto", "keep": "faster"}
_numbers = random.Random(os.urandom(8))


def calls_until_building(tagged: Callable[..., Any], *sizes: int, **options: Any) -> None:
    """Call it with fresh tensors until it is compiled in the background."""
    for _ in range(8):
        if handle_of(tagged).building is not None:
            return
        tagged(torch.randn(*sizes, **options))
    raise AssertionError("it was never compiled")


def variants(tagged: object) -> int:
    return handle_of(tagged).ledger.added


def test_a_small_function_is_compiled_at_its_first_call() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin().sum(), options=AUTO)
    tagged(torch.randn(3))
    assert handle_of(tagged).ledger.is_compiled


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize(
    "wish",
    [
        {"fullgraph": True},
        {"mode": "reduce-overhead"},
        {"backend": "eager"},
        {"options": {"background": False}},
        {"options": {**AUTO, "keep": "compiled"}},
        {"options": {**AUTO, "on_error": "raise"}},
    ],
    ids=lambda wish: str(next(iter(wish))),
)
def test_what_asks_for_a_compile_gets_it_at_once(wish: dict[str, Any]) -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), **{"options": AUTO, **wish})
    tagged(torch.randn(3))
    assert variants(tagged) == 1


@pytest.mark.usefixtures("costly")
def test_stages_after_the_trace_run_on_another_thread() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(3, 4)
    plain = net(x)
    jitmagic.jit(net, options=AUTO)
    threads: dict[str, bool] = {}

    def watch(record: Any, stage: Any, begins: bool) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        threads[stage.stage] = is_main

    records.watchers.append(watch)
    try:
        calls_until_building(net, 3, 4)
        assert variants(net) == 0
        assert jitmagic.wait(120)
        result = net(x)
    finally:
        records.watchers.remove(watch)
    assert variants(net) == 1
    on_calling_thread = {stage for stage, is_main in threads.items() if is_main}
    assert on_calling_thread <= {"trace", "emit", "import"}
    assert {"joint", "forward: lower", "backward: lower"} <= threads.keys()
    torch.testing.assert_close(result, plain)
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), list(net.parameters())),
        torch.autograd.grad(plain.sum(), list(net.parameters())),
    )


@pytest.mark.usefixtures("costly")
def test_without_a_free_processor_a_call_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pay_back, "has_free_processor", has_free_processor)
    monkeypatch.setattr(pay_back.platforms, "usable_processors", torch.get_num_threads)
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    for call in range(5):
        tagged(torch.randn(3))
        assert variants(tagged) == (call >= 3)
        assert handle_of(tagged).building is None


@pytest.mark.usefixtures("costly")
def test_calls_are_eagers_meanwhile_and_draw_the_same_numbers(gate: threading.Event) -> None:
    def plain(x: Tensor) -> Tensor:
        return x + torch.rand(4)

    tagged = jitmagic.jit(plain, options=AUTO)
    calls_until_building(tagged, 4)
    x = torch.randn(4)
    torch.manual_seed(7)
    wanted = [plain(x), plain(x), torch.rand(1)]
    torch.manual_seed(7)
    assert torch.equal(tagged(x), wanted[0])
    gate.set()
    assert jitmagic.wait(120)
    state = torch.get_rng_state()
    torch.testing.assert_close(tagged(torch.zeros(4)) + x, wanted[1])
    assert variants(tagged) == 1
    assert torch.equal(torch.rand(1), wanted[2])
    assert not torch.equal(state, torch.get_rng_state())


@pytest.mark.usefixtures("costly")
def test_calls_with_the_same_tensors_are_a_measurement() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    x = torch.randn(3)
    tagged(x)
    assert variants(tagged) == 0
    tagged(x)
    assert variants(tagged) == 1
    other = jitmagic.jit(lambda x: (x * 3).sin(), options=AUTO)
    other(torch.randn(3))
    other(torch.randn(3))  # its memory may be the first one's, it is another tensor
    assert variants(other) == 0


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize("pass_on", ["*args", "**kwargs", "dict"])
def test_tensors_in_containers_are_compared_too(pass_on: str) -> None:
    ways: dict[str, tuple[Callable[..., Tensor], Callable[..., Any]]] = {
        "*args": (lambda *args: args[0].sin(), lambda tagged, x: tagged(x)),
        "**kwargs": (lambda **kwargs: kwargs["x"].sin(), lambda tagged, x: tagged(x=x)),
        "dict": (lambda batch: batch["x"][0].sin(), lambda tagged, x: tagged({"x": [x]})),
    }
    program, call = ways[pass_on]
    tagged, x = jitmagic.jit(program, options=AUTO), torch.randn(3)
    call(tagged, x)
    call(tagged, torch.randn(3))
    assert variants(tagged) == 0
    call(tagged, x)
    call(tagged, x)
    assert variants(tagged) == 1


@pytest.mark.usefixtures("costly")
def test_who_asks_for_a_compile_gets_it_at_once(gate: threading.Event) -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    jitmagic.aot(tagged)(torch.randn(3))
    assert variants(tagged) == 1
    other = jitmagic.jit(lambda x: (x * 3).sin(), options=AUTO)
    calls_until_building(other, 3)
    gate.set()
    jitmagic.aot(other)(torch.randn(3))
    assert variants(other) == 1


@pytest.mark.usefixtures("costly")
def test_wait_makes_the_next_call_compile() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    tagged(torch.randn(3))
    assert jitmagic.wait(0)
    tagged(torch.randn(3))
    assert variants(tagged) == 1


@pytest.mark.usefixtures("costly")
def test_state_that_changes_during_the_compile_is_guarded(gate: threading.Event) -> None:
    held = {"scale": 2.0}
    tagged = jitmagic.jit(lambda x: (x * held["scale"]).sin(), options=AUTO)
    calls_until_building(tagged, 3)
    held["scale"] = 5.0
    gate.set()
    assert jitmagic.wait(120)
    x = torch.randn(3)
    torch.testing.assert_close(tagged(x), (x * 5.0).sin())
    held["scale"] = 2.0
    torch.testing.assert_close(tagged(x), (x * 2.0).sin())


@pytest.mark.usefixtures("costly")
def test_the_default_dtype_changes_during_the_compile(gate: threading.Event) -> None:
    tagged = jitmagic.jit(lambda x: x + torch.ones(3) * 0.5, options=AUTO)
    calls_until_building(tagged, 3)
    torch.set_default_dtype(torch.float64)
    try:
        gate.set()
        assert jitmagic.wait(120)
    finally:
        torch.set_default_dtype(torch.float32)
    x = torch.randn(3)
    assert tagged(x).dtype is torch.float32
    torch.testing.assert_close(tagged(x), x + 0.5)


@pytest.mark.usefixtures("costly")
def test_modes_of_the_call_are_those_of_the_compile() -> None:
    layer = nn.Linear(4, 4)
    tagged = jitmagic.jit(lambda x: layer(x).relu(), options=AUTO)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        calls_until_building(tagged, 3, 4)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert jitmagic.wait(120)
    x = torch.randn(3, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = tagged(x)
        assert result.dtype is torch.bfloat16
        torch.testing.assert_close(result, layer(x).relu(), atol=0.02, rtol=0.02)
    assert variants(tagged) == 1
    assert tagged(x).requires_grad


@pytest.mark.usefixtures("costly")
def test_a_compile_under_a_mode_stays_on_the_calling_thread() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        for _ in range(4):
            tagged(torch.randn(3))
            assert handle_of(tagged).building is None
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("costly")
def test_an_error_is_reported_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: Any) -> Any:
        raise ZeroDivisionError("no joint graph")

    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    monkeypatch.setattr(pipeline, "trace_joint", refuses)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        calls_until_building(tagged, 3)
        assert jitmagic.wait(120)
        assert not told
        assert torch.equal(tagged(x), (x * 2).sin())
    assert [one.category for one in told] == [FallbackWarning]
    assert "no joint graph" in str(told[0].message)
    assert told[0].filename == __file__


@pytest.mark.usefixtures("costly")
def test_warnings_wait_for_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = pipeline.trace_joint

    def warns(*args: Any) -> Any:
        jitmagic.errors.warn("slower than it could be")
        return joint(*args)

    monkeypatch.setattr(pipeline, "trace_joint", warns)
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        calls_until_building(tagged, 3)
        assert jitmagic.wait(120)
        assert not told
        tagged(torch.randn(3))
    assert [(str(one.message), one.filename) for one in told] == [
        ("slower than it could be", __file__)
    ]


@pytest.mark.usefixtures("costly")
def test_a_compile_that_runs_out_of_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_long(*args: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr(pipeline, "trace_joint", takes_long)
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    calls_until_building(tagged, 3)
    assert jitmagic.wait(120)
    x = torch.randn(3)
    with pytest.warns(FallbackWarning, match="given up"):
        assert torch.equal(tagged(x), (x * 2).sin())
    assert handle_of(tagged).building is None
    assert not handle_of(tagged).ledger.is_compiled


@pytest.mark.usefixtures("costly")
def test_a_short_last_batch_stays_eager() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    jitmagic.jit(net, options=AUTO)
    for epoch in range(2):
        for size in (8, 8, 8, 8, 3):
            assert jitmagic.wait(120) or epoch
            handle_of(net).pay_back.is_wanted = False
            x = torch.randn(size, 4)
            wanted = net[1](net[0](x))
            torch.testing.assert_close(net(x), wanted)
    assert jitmagic.wait(120)
    assert variants(net) == 1


@pytest.mark.usefixtures("costly")
def test_a_number_that_a_scheduler_changes_is_an_input_of_the_first_variant() -> None:
    net = nn.Linear(4, 4)
    groups = [{"lr": 0.5, "decay": 0.25}]
    tagged = jitmagic.jit(lambda x: net(x) * groups[0]["lr"] + groups[0]["decay"], options=AUTO)
    for call in range(12):
        groups[0]["lr"] = 1.0 / (call + 2)
        x = torch.randn(3, 4)
        torch.testing.assert_close(tagged(x), net(x) * groups[0]["lr"] + 0.25)
        assert jitmagic.wait(120)
        handle_of(tagged).pay_back.is_wanted = False
    assert variants(tagged) == 1


@pytest.mark.usefixtures("costly")
def test_numbers_of_an_optimizer_are_known_before_the_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces: list[object] = []
    trace_frame = pipeline.trace_frame
    monkeypatch.setattr(
        pipeline, "trace_frame", lambda *given: traces.append(given) or trace_frame(*given)
    )
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=50)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    tagged = jitmagic.jit(step, options=AUTO)
    for _ in range(8):
        tagged(torch.randn(3, 4))
        schedule.step()
        assert jitmagic.wait(120)
        handle_of(tagged).pay_back.is_wanted = False
    assert variants(tagged) == 1
    assert len(traces) == 1


@pytest.mark.usefixtures("costly")
def test_many_sizes_count_together() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    for size in range(3, 17):
        tagged(torch.randn(size))
    assert jitmagic.wait(120)
    tagged(torch.randn(5))
    assert variants(tagged) >= 1


@pytest.mark.usefixtures("costly")
def test_reset_drops_a_compile_in_the_background(gate: threading.Event) -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    calls_until_building(tagged, 3)
    jitmagic.reset()
    assert handle_of(tagged).building is None
    gate.set()
    x = torch.randn(3)
    assert torch.equal(tagged(x), (x * 2).sin())
    assert variants(tagged) == 0


@pytest.mark.usefixtures("costly")
def test_a_function_that_is_freed_during_its_compile(gate: threading.Event) -> None:
    def plain(x: Tensor) -> Tensor:
        return (x * 2).sin()

    tagged = jitmagic.jit(plain, options=AUTO)
    calls_until_building(tagged, 3)
    handle = weakref.ref(handle_of(tagged))
    building = handle_of(tagged).building
    del tagged, plain
    gc.collect()
    gate.set()
    assert building.wait(120)
    del building
    for _ in range(100):
        gc.collect()
        if handle() is None:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the handle lives on")


@pytest.mark.usefixtures("costly")
def test_a_forked_child_compiles_for_itself(gate: threading.Event) -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    calls_until_building(tagged, 3)
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        x = torch.randn(3)
        is_right = torch.allclose(tagged(x), (x * 2).sin()) and variants(tagged) == 1
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not handle_of(tagged).building.wait(0)


@pytest.mark.usefixtures("costly")
def test_status_and_explain_say_that_it_waits() -> None:
    tagged = jitmagic.jit(lambda x: (x * 2).sin(), options=AUTO)
    tagged(torch.randn(3))
    assert "plain Python, until a compile pays" in str(jitmagic.status(tagged))
    assert tagged_handle(tagged).outcome is None


_INTERRUPTED = """
import os, signal, threading, torch, jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import pipeline
from jitmagic.frame.timing import pay_back
pay_back._UNNOTICEABLY = pay_back.Terms(affordable=0.0)
pay_back._Evidence.pays = property(lambda one: one.calls >= 2)
pay_back.has_free_processor = lambda values: True
begun, joint = threading.Event(), pipeline.trace_joint
def slow(*args):
    begun.set()
    threading.Event().wait(0.3)
    return joint(*args)
pipeline.trace_joint = slow
text = "\\n".join(f"    x = (x * {n}).sin() @ x" for n in range(6))
space = {}
exec(f"def f(x):\\n{text}\\n    return x", space)
f = jitmagic.jit(space["f"], options={"background": "auto", "keep": "faster"})
while handle_of(f).building is None:
    f(torch.randn(8, 8))
assert begun.wait(60)
"""
_CTRL_C = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the suite's shell ignores it
try:
    signal.raise_signal(signal.SIGINT)  # to this thread: another would pass it on at any time
    f(torch.randn(8, 8))
except KeyboardInterrupt:
    print("interrupted")
assert jitmagic.wait(120)
f(torch.randn(8, 8))
print("compiled", handle_of(f).ledger.is_compiled)
"""


def test_ctrl_c_does_not_reach_the_compile() -> None:
    done = run_forked(_INTERRUPTED + _CTRL_C)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.split() == ["interrupted", "compiled", "True"]


def test_a_process_that_exits_during_a_compile_ends_cleanly() -> None:
    done = run_forked(_INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
