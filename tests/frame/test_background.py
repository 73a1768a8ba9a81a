"""options={"background": ...}: calls run as eager until their kernels are built."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of, tagged_handle
from jitmagic.errors import OptionError
from jitmagic.runtime import background_builds, toolchain, translation_units
from tests.processes import run_forked

_numbers = random.Random(os.urandom(8))


def fresh(body: str, **names: Any) -> Callable[..., Any]:
    """Return a function whose kernels are in no cache: N is different each time."""
    text = f"def fresh(x):\n    {body.replace('N', str(_numbers.randrange(2, 2**24)))}\n"
    space: dict[str, Any] = {"torch": torch, "jitmagic": jitmagic, **names}
    exec(compile(text, "<fresh>", "exec"), space)
    made: Callable[..., Any] = space["fresh"]
    return made


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Builds wait until it is set."""
    event = threading.Event()
    build = background_builds.build_units

    def waits(*args: Any) -> Any:
        event.wait(60)
        return build(*args)

    monkeypatch.setattr(background_builds, "build_units", waits)
    yield event
    event.set()
    assert jitmagic.wait(120)


BODIES = {
    "plain": "return (x * N).sin()",
    "draws": "return torch.rand(4) + x * N",
    "writes": "x.add_(N); return x * 2",
    "prints": "y = x * N; print('side effect'); return y + 1",
    "product": "return (x @ x.t() + N).relu()",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_calls_return_eagers_results_before_and_after_the_build(
    body: str, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fresh(body)
    tagged = jitmagic.jit(plain, options={"background": True, "keep": "compiled"})
    for call in range(4):
        if call == 2:
            gate.set()
            assert jitmagic.wait(120)
        wanted = _answer(plain, capsys)
        assert torch.equal(_answer(tagged, capsys)[0], wanted[0]) or call >= 2
        torch.testing.assert_close(_answer(tagged, capsys), wanted)
        compiled = handle_of(tagged).ledger.is_compiled
        assert compiled == (call >= 2)


def _answer(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    torch.manual_seed(3)
    x = torch.arange(16.0).reshape(4, 4)
    result = fn(x)
    drawn = torch.rand(1)
    text = capsys.readouterr().out
    return [result, x, drawn, torch.tensor(len(text))]


def _no_compiler(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("all kernels are there")


def test_gradients_and_a_backward_whose_kernels_are_built_too(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fresh("return (x * N).sin().sum()")
    tagged = jitmagic.jit(plain, options={"background": True, "keep": "compiled"})
    x = torch.randn(8, requires_grad=True)
    (wanted,) = torch.autograd.grad(plain(x), x)
    assert torch.equal(torch.autograd.grad(tagged(x), x)[0], wanted)
    gate.set()
    assert jitmagic.wait(120)
    monkeypatch.setattr(toolchain, "run", _no_compiler)
    torch.testing.assert_close(torch.autograd.grad(tagged(x), x)[0], wanted)
    records = list(tagged_handle(tagged).journal)
    assert sum(record.kernels for record in records) >= 2
    assert not any(record.cache_hits for record in records)  # they were built for this function
    again = jitmagic.jit(plain)
    torch.testing.assert_close(torch.autograd.grad(again(x), x)[0], wanted)
    assert all(record.cache_hits == record.kernels for record in tagged_handle(again).journal)


def test_guards_are_those_of_the_call_that_is_compiled(gate: threading.Event) -> None:
    """State that changes during the build is taken from the later call."""
    space: dict[str, Any] = {"scale": 2.0, "flag": True}
    plain = fresh("return (x * N * scale).cos() if flag else x + scale", **space)
    tagged = jitmagic.jit(plain, options={"background": True, "keep": "compiled"})
    x = torch.randn(6)
    tagged(x)
    plain.__globals__.update(flag=False, scale=5.0)
    gate.set()
    assert jitmagic.wait(120)
    for flag in (False, True, False):
        plain.__globals__["flag"] = flag
        jitmagic.wait(120)
        torch.testing.assert_close(tagged(x), plain(x))
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(tagged(torch.arange(3)), plain(torch.arange(3)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_modules_and_threads(gate: threading.Event) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(5, 5)
            self.scale = float(_numbers.randrange(2, 2**24))

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) * self.scale).tanh()

    net = Net()
    x = torch.randn(3, 5)
    wanted = net(x)
    jitmagic.jit(net, options={"background": True})
    failures: list[BaseException] = []

    def calls() -> None:
        try:
            for _ in range(30):
                torch.testing.assert_close(net(x), wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert jitmagic.wait(120)
    torch.testing.assert_close(net(x), wanted)


def test_a_failed_build_is_reported_by_the_next_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build thread reports nothing; the next compile builds again and warns."""
    tagged = jitmagic.jit(fresh("return (x * N).exp()"), options={"background": True})
    x = torch.ones(4)

    def refuses(*args: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(background_builds, "build_units", refuses)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tagged(x)
        assert jitmagic.wait(60)
    assert not told
    assert not handle_of(tagged).ledger.is_compiled
    monkeypatch.setattr(background_builds, "build_units", translation_units.build_units)
    tagged(x)  # built in the call: a unit is built ahead only once
    assert handle_of(tagged).ledger.is_compiled


def test_patience_limits_the_wait_for_a_build(gate: threading.Event) -> None:
    slow = jitmagic.jit(fresh("return x * N"), options={"background": 0.05})
    slow(torch.ones(3))
    assert handle_of(slow).building is not None
    gate.set()
    quick = jitmagic.jit(fresh("return x * N"), options={"background": 120.0})
    quick(torch.ones(3))
    assert handle_of(quick).building is None
    assert handle_of(quick).ledger.is_compiled


def test_building_counts_as_time_of_the_compile() -> None:
    tagged = jitmagic.jit(fresh("return (x * N).sin()"), options={"background": True})
    tagged(torch.ones(4))
    assert jitmagic.wait(120)
    tagged(torch.ones(4))
    (record,) = tagged_handle(tagged).journal
    built = [stage.seconds for stage in record.stages if stage.stage == "load"]
    assert len(built) == 1
    assert 0 < built[0] < record.seconds


def test_kernels_in_the_cache_are_used_at_once() -> None:
    body = fresh("return (x * N).neg()")
    jitmagic.jit(body)(torch.ones(3))
    again = jitmagic.jit(body, options={"background": True})
    again(torch.ones(3))
    assert handle_of(again).ledger.is_compiled


def test_reset_drops_a_pending_build(gate: threading.Event) -> None:
    tagged = jitmagic.jit(fresh("return x * N"), options={"background": True})
    tagged(torch.ones(3))
    jitmagic.reset()
    assert handle_of(tagged).building is None


def test_a_forked_child_builds_for_itself(gate: threading.Event) -> None:
    tagged = jitmagic.jit(fresh("return x * N"), options={"background": True})
    tagged(torch.ones(3))
    child = os.fork()
    if not child:
        begun = handle_of(tagged).building
        os._exit(0 if begun is not None and begun.wait(0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not handle_of(tagged).building.wait(0)


@pytest.mark.parametrize("given", [-1.0, "yes", float("nan"), None])
def test_invalid_background_options_are_refused(given: Any) -> None:
    with pytest.raises(OptionError):
        jitmagic.jit(fresh("return x"), options={"background": given})


_EXITS = """
import time, torch, jitmagic
text = "\\n".join(f"    x = (x * {time.time_ns()} + {n}).sin() @ x" for n in range(6))
space = {}
exec(f"def f(x):\\n{text}\\n    return x", space)
f = jitmagic.jit(space["f"], options={"background": True})
print(f(torch.ones(32, 32)).shape)
time.sleep(0.3)
"""


def test_a_process_that_exits_during_a_build_ends_cleanly() -> None:
    done = run_forked(_EXITS)
    assert done.returncode == 0
    assert not done.stderr
    assert "32, 32" in done.stdout
