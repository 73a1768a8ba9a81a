"""Compiled calls, graphs and kernels in the profiles of torch.profiler, by the user's names."""

from __future__ import annotations

import cProfile
import json
import pstats
import re
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

import jitmagic

FILE = Path(__file__).name
KEEP = {"keep": "compiled"}


def profiled(call: Callable[[], object]) -> list[Any]:
    """The events of a call, in the order in which they began."""
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        call()
    return sorted(prof.events(), key=lambda event: event.time_range.start)


def names(call: Callable[[], object]) -> list[str]:
    return [event.name for event in profiled(call)]


def ours(call: Callable[[], object]) -> list[str]:
    """Names of events with a place in this file; its line numbers are left out."""
    found = [name for name in names(call) if FILE in name or "kernel" in name]
    return [re.sub(r" \([^)]*\)$", "", name) for name in found]


@jitmagic.jit(options=KEEP)
def step(x: Tensor, y: Tensor) -> Tensor:
    shifted = x * y + 2
    return torch.relu(shifted).sum(-1)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 64, requires_grad=True), torch.randn(8, 64)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_calls_graphs_and_kernels_bear_the_users_name_forward_and_backward() -> None:
    x, y = inputs()
    step(x, y).sum().backward()
    found = names(lambda: step(x, y).sum().backward())
    begins = line_of("@jitmagic.jit")
    first = line_of("shifted = ")
    assert f"step ({FILE}:{begins})" in found
    assert f"forward of step ({FILE}:{begins})" in found
    assert f"backward of step ({FILE}:{begins})" in found
    (forward,) = [name for name in found if name.startswith("kernel")]
    assert re.fullmatch(rf"kernel 0 of step: mul, add, .*\({FILE}:{first}, {first + 1}\)", forward)
    (backward,) = [name for name in found if name.startswith("backward kernel")]
    assert re.fullmatch(rf"backward kernel 0 of step: .*mul.* \({FILE}:{first}.*\)", backward)


def test_each_stands_inside_the_other_in_the_chrome_trace(tmp_path: Path) -> None:
    x, y = inputs()
    step(x, y)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        step(x, y)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [
        next(e for e in events if str(e.get("name", "")).startswith(begin) and "dur" in e)
        for begin in ("step (", "forward of step (", "kernel 0 of step: ")
    ]
    for outer, inner in zip(spans, spans[1:], strict=False):
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.parametrize("profiles", [False, True])
def test_profiles_change_no_answer_and_no_variant(profiles: bool) -> None:
    x, y = inputs()
    wanted = torch.relu(x * y + 2).sum(-1)
    tagged = jitmagic.jit(lambda x, y: torch.relu(x * y + 2).sum(-1), options=KEEP)
    if not profiles:
        tagged(x, y)
    with profile(activities=[ProfilerActivity.CPU]):
        got = tagged(x, y)
    torch.testing.assert_close(got, wanted)
    grads = [torch.autograd.grad(value.sum(), x)[0] for value in (got, wanted)]
    torch.testing.assert_close(*grads)
    tagged(x, y)
    handle = jitmagic.api.handle_of(tagged)
    assert handle is not None
    assert len(handle.dispatcher.entries) == 1


def test_a_compile_is_not_in_the_profile() -> None:
    tagged = jitmagic.jit(lambda x: (x * 3 + 1).relu(), options=KEEP)
    found = ours(lambda: tagged(torch.ones(4)))
    assert found == ["<lambda>", "forward of <lambda>", "kernel 0 of <lambda>: mul, add, relu"]


def test_what_follows_a_graph_break_has_its_own_line() -> None:
    @jitmagic.jit(options=KEEP)
    def broken(x: Tensor) -> Tensor:
        x = x * 2
        jitmagic.graph_break()
        return x + 3  # the rest

    broken(torch.ones(4))
    found = names(lambda: broken(torch.ones(4)))
    rest = line_of("return x + 3  # the rest")
    graphs = [name for name in found if name.startswith("forward of ")]
    assert len(graphs) == 2
    assert graphs[1].endswith((f":{rest})", f":{rest - 1})"))
    assert sum(name.startswith("broken (") for name in found) == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).relu()


def test_modules_are_named_by_their_forward() -> None:
    model = jitmagic.jit(Net(), options=KEEP)
    x = torch.ones(2, 4)
    model(x)
    found = names(lambda: model(x))
    begins = line_of("def forward(self, x: Tensor)")
    assert f"Net.forward ({FILE}:{begins})" in found
    assert f"forward of Net.forward ({FILE}:{begins})" in found


def test_sizes_that_vary_share_kernels_and_names() -> None:
    tagged = jitmagic.jit(lambda x: (x * 3 + 1).relu(), dynamic=True, options=KEEP)
    tagged(torch.ones(4))
    for size in (5, 6):
        found = ours(lambda size=size: tagged(torch.ones(size)))  # type: ignore[misc]
        assert found[-1].startswith("kernel 0 of <lambda>: mul, add, relu")


def test_blocks_of_the_users_keep_their_place() -> None:
    @jitmagic.jit(options=KEEP)
    def named(x: Tensor) -> Tensor:
        with record_function("inner block"):
            x = x.sin()
        return x + 1

    x = torch.randn(4)
    named(x)
    results: list[Tensor] = []
    found = names(lambda: results.append(named(x)))
    assert torch.equal(results[0], x.sin() + 1)
    assert found.index("inner block") > next(i for i, n in enumerate(found) if "named (" in n)
    assert torch.equal(named(x), x.sin() + 1)


def test_errors_end_their_block() -> None:
    tagged = jitmagic.jit(lambda x, i: x[i] + 1, options=KEEP)
    x = torch.randn(4)
    tagged(x, torch.tensor([1]))

    def fails() -> None:
        with pytest.raises((IndexError, RuntimeError)):
            tagged(x, torch.tensor([9]))
        with record_function("afterwards"):
            pass

    events = profiled(fails)
    (after,) = [event for event in events if event.name == "afterwards"]
    assert after.cpu_parent is None


def test_other_threads_are_left_alone() -> None:
    x, y = inputs()
    found: list[Tensor] = []
    with profile(activities=[ProfilerActivity.CPU]):
        thread = threading.Thread(target=lambda: found.append(step(x, y)))
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], torch.relu(x * y + 2).sum(-1))


def test_names_that_are_no_plain_text_leave_the_trace_whole(tmp_path: Path) -> None:
    space: dict[str, Any] = {"torch": torch}
    hostile = "/tmp/<b>\"\\'\n \udc80.py"
    exec(compile("def f(x):\n    return x * 2 + 1\n", hostile, "exec"), space)
    tagged = jitmagic.jit(space["f"], options=KEEP)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        assert torch.equal(tagged(torch.ones(3)), torch.full((3,), 3.0))
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(str(event.get("name", "")).startswith("kernel 0 of f") for event in events)


def test_deep_recursion_is_profiled_too() -> None:
    @jitmagic.jit(options=KEEP)
    def down(x: Tensor, n: int) -> Tensor:
        jitmagic.graph_break()
        return x + 1 if n == 0 else down(x + 1, n - 1)

    results: list[Tensor] = []
    names(lambda: results.append(down(torch.zeros(2), 120)))
    assert torch.equal(results[0], torch.full((2,), 121.0))


def test_a_warning_of_an_extern_call_names_the_users_line() -> None:
    """The frame around a graph that is the whole function stands at its first line."""

    def looks(x: Tensor) -> Tensor:
        y = x + 1
        return torch.searchsorted(y.t(), x.t())  # warns that neither is contiguous

    tagged, x = jitmagic.jit(looks, options={"keep": "compiled"}), torch.arange(12.0).view(3, 4)
    tagged(x)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            looks(x)
            tagged(x)
        with warnings.catch_warnings(), pytest.raises(UserWarning, match="searchsorted"):
            warnings.simplefilter("error")
            tagged(x)
    finally:
        torch.set_warn_always(False)
    eager, compiled = told[: len(told) // 2], told[len(told) // 2 :]
    assert [(str(w.message), w.filename, w.lineno, w.category) for w in compiled] == [
        (str(w.message), w.filename, w.lineno, w.category) for w in eager
    ]
    assert len(eager) == 2


def test_python_profilers_see_the_function_name_and_no_jitmagic_frames() -> None:
    """%prun, and whoever samples the frames of a thread, as py-spy does."""
    call = partial(step, *inputs())
    call()
    profiler = cProfile.Profile()
    profiler.runcall(call)
    seen = {(Path(file).name, line, name) for file, line, name in pstats.Stats(profiler).stats}
    line = step.__code__.co_firstlineno
    assert seen - {("~", 0, "<method 'disable' of '_lsprof.Profiler' objects>")} == {
        (FILE, line, "step")
    }
