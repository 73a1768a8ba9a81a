"""Sizes that differ from call to call: one variant serves them, and what it gives is eager's."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.bytecode import FrameSnapshot
from jitmagic.compile import pipeline, tracing
from jitmagic.errors import UserLine
from jitmagic.frame.native import GuardProgram, lower_guards
from jitmagic.guards.check import check
from jitmagic.guards.guard import SizesRelate, TensorMatch
from jitmagic.records import COMPILED
from jitmagic.trace.breaks import FailedOperation
from jitmagic.trace.restarts import Stop
from jitmagic.trace.varying.concrete import places_of

SIZES = (8, 5, 9, 16, 3, 2, 12, 7)
Program = Callable[..., Any]
W, B, E = torch.randn(16, 16), torch.randn(16), torch.randn(10, 16)
K = torch.randn(4, 3, 3, 3)


def pieces(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return x.view(n, 4, -1).transpose(0, 1).reshape(4, -1), x[1:], x.split(8, 1)[1], x[-1]


def heads(x: torch.Tensor) -> torch.Tensor:
    n, width = x.shape
    q, k, v = (t.view(1, n, 4, width // 4).transpose(1, 2) for t in (x, x * 2, x + 1))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return made.transpose(1, 2).reshape(n, width)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    return y.add_(B).relu_()


PROGRAMS: dict[str, Program] = {
    "pointwise": lambda x: torch.tanh(x * 2 + B).clamp(-1, 1),
    "reductions": lambda x: (x.sum(), x.mean(0), x.amax(1), x.std(0), x.softmax(-1), x.argmax(1)),
    "products": lambda x: (x @ W, F.linear(x, W, B), x.T @ x),
    "shapes": pieces,
    "cat": lambda x: torch.cat([x, x * 2, E]).sum(0) / 3,
    "numbers of sizes": lambda x: (torch.zeros(x.shape[0], 2) + x.numel(), torch.arange(len(x))),
    "normalised": lambda x: F.layer_norm(F.gelu(x), (16,), B, B),
    "convolution": lambda x: F.conv2d(x.view(-1, 1, 4, 4).expand(-1, 3, 4, 4), K, padding=1),
    "embedding": lambda x: F.embedding((x[:, 0] > 0).long(), E),
    "attention": heads,
    "in place": in_place,
    "ints": lambda x: (x * 2, x.shape[0], x.shape, x.numel() // 2, len(x) + 1),
    "index": lambda x: (x[torch.tensor([0, 1])], x.gather(1, torch.zeros(len(x), 1).long())),
    "loss": lambda x: F.cross_entropy(x, torch.zeros(x.size(0), dtype=torch.long)),
}


def compiles(fn: Any) -> int:
    """How often the frame was traced."""
    return sum(r.result("trace") is not None for r in handle_of(fn).journal.records)


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            same(*pair)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert found.stride() == wanted.stride()
    else:
        assert type(found) is type(wanted) and found == wanted


def _named(fn: Program) -> Program:
    """A function of its own, with code of its own."""
    return types.FunctionType(fn.__code__.replace(), fn.__globals__, "program", fn.__defaults__)


def tagged(fn: Program, **options: Any) -> Any:
    return jitmagic.jit(_named(fn), **{"backend": "eager", "dynamic": True, **options})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_variant_serves_all_sizes(name: str, backend: str) -> None:
    fn = PROGRAMS[name]
    made = tagged(fn, backend=backend)
    for n in SIZES:
        x = torch.randn(n, 16)
        same(made(x), fn(x))
    assert compiles(made) <= 2


@pytest.mark.parametrize("name", ["pointwise", "products", "shapes", "normalised", "attention"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients(name: str, backend: str) -> None:
    fn = PROGRAMS[name]
    made = tagged(fn, backend=backend)
    for n in SIZES[:4]:
        x = torch.randn(n, 16, requires_grad=True)
        grads = []
        for run in (made, fn):
            found = run(x)
            found = found if isinstance(found, tuple) else (found,)
            total = sum(one.square().sum() for one in found)
            grads.append(torch.autograd.grad(total, x))
        same(*grads)
    assert compiles(made) <= 2


def test_generated_code() -> None:
    fn = lambda x: torch.tanh(x @ W + B).sum(0)  # noqa: E731
    made = jitmagic.jit(fn, dynamic=True, options={"keep": "compiled"})
    for n in (8, 5, 9, 5):
        x = torch.randn(n, 16)
        same(made(x), torch.tanh(x @ W + B).sum(0))
    assert compiles(made) <= 2


def test_sizes_zero_and_one_are_variants_of_their_own() -> None:
    made = tagged(PROGRAMS["normalised"])
    for n in (4, 6, 1, 0, 7, 1, 0):
        x = torch.randn(n, 16)
        same(made(x), PROGRAMS["normalised"](x))
    assert compiles(made) == 3


def branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 6 else x - 1


def two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y if x.shape == y.shape else x.sum() * y


def unrolled(x: torch.Tensor) -> torch.Tensor:
    total = x[0]
    for i in range(x.shape[0]):
        total = total + x[i] * i
    return total


def text(x: torch.Tensor) -> tuple[torch.Tensor, str]:
    return x + 1, f"{x.shape[0]} rows"


@pytest.mark.parametrize("fn", [branch, unrolled, text])
def test_what_depends_on_the_size_is_right_for_each(fn: Program) -> None:
    made = tagged(fn)
    for n in (8, 5, 9, 3, 12, 2, 8):
        x = torch.randn(n, 3)
        same(made(x), fn(x))


def test_equal_sizes_share_a_symbol_until_they_differ() -> None:
    made = tagged(two, dynamic=True)
    for n, m in ((4, 4), (6, 6), (6, 3), (3, 6), (5, 5), (2, 9)):
        x, y = torch.randn(n, 1), torch.randn(m, 1)
        same(made(x, y), two(x, y))
    assert compiles(made) <= 2


def test_layouts() -> None:
    made = tagged(lambda x: x * 2 + x.sum(0), dynamic=True)
    for n in (4, 6, 8):
        for x in (torch.randn(n, 6), torch.randn(6, n).t(), torch.randn(n, 12)[:, ::2]):
            same(made(x), x * 2 + x.sum(0))


@pytest.mark.parametrize(
    ("options", "mark", "count"),
    [
        ({"dynamic": True}, None, 1),
        ({"dynamic": False}, None, 3),
        ({}, None, 2),
        ({"dynamic": False}, lambda x: jitmagic.mark_dynamic(x, 0), 3),
        ({}, lambda x: jitmagic.mark_static(x, 0), 3),
        ({"dynamic": {"x": {0: (2, 64)}}}, None, 1),
        ({"dynamic": {"x": {0: (2, 6)}}}, None, 2),
        ({"dynamic": {"x": {0: (2, 3)}}}, None, 2),
        ({}, lambda x: jitmagic.mark_dynamic(x, 0), 1),
        ({}, lambda x: jitmagic.mark_dynamic(x, -2, min=3, max=64), 1),
        ({"dynamic": True}, lambda x: jitmagic.mark_static(x, 0), 3),
        ({}, lambda x: setattr(x, "_dynamo_dynamic_indices", {0}), 1),
    ],
)
def test_options_and_marks(options: dict[str, Any], mark: Any, count: int) -> None:
    @jitmagic.jit(backend="eager", **options)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(0)

    for n in (4, 5, 9):
        x = torch.randn(n, 3)
        if mark is not None:
            mark(x)
        same(f(x), x.relu().sum(0))
    assert compiles(f) == count


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({"dynamic": {"x": {0: (2, 8)}}}, None),
        ({}, lambda x: jitmagic.mark_dynamic(x, 0, max=8)),
        ({}, lambda x: jitmagic.mark_unbacked(x, 0, min=2, max=8)),
    ],
)
def test_sizes_over_the_bounds_are_one_variant_more(options: dict[str, Any], mark: Any) -> None:
    made = tagged(lambda x: x.relu().sum(0), **options)
    for n, count in ((3, 1), (8, 1), (9, 2), (30, 2), (2, 2), (17, 2), (1, 3), (40, 3)):
        x = torch.randn(n, 3)
        if mark is not None:
            mark(x)
        same(made(x), x.relu().sum(0))
        assert compiles(made) == count, n


@pytest.mark.parametrize(
    ("dim", "limits", "error"),
    [
        (5, {}, IndexError), ("a", {}, ValueError), ([0, 1], {}, ValueError),
        (True, {}, ValueError),
        (0, {"min": -1}, ValueError), (0, {"min": 2.5}, ValueError), (0, {"max": "9"}, ValueError),
        (0, {"min": 9, "max": 8}, ValueError),
    ],
)  # fmt: skip
def test_bad_marks(dim: Any, limits: dict[str, Any], error: type[Exception]) -> None:
    for mark in (jitmagic.mark_dynamic, jitmagic.mark_unbacked):
        with pytest.raises(error):
            mark(torch.ones(2, 2), dim, **limits)


def test_only_what_changed_becomes_a_symbol() -> None:
    """And only from calls that are alike in all else: a mode of its own has a size of its own."""

    @jitmagic.jit(backend="eager")
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.relu() + y

    def free() -> list[tuple[int, ...]]:
        last = max(handle_of(f).dispatcher.entries, key=lambda entry: entry.notes.number)
        return [guard.free_sizes for guard in last.notes.guards if type(guard) is TensorMatch]

    for shape, dtype, wanted in (
        ((4, 3), torch.float32, [(), ()]),
        ((9, 3), torch.float64, [(), ()]),
        ((6, 3), torch.float64, [(0,), ()]),
        ((8, 3), torch.float32, [(0,), ()]),
        ((8, 1), torch.float32, [(0, 1), ()]),  # from one on
        ((8, 2), torch.float32, [(0, 1), ()]),
    ):
        x, y = torch.randn(shape, dtype=dtype), torch.randn(())
        same(f(x, y), x.relu() + y)
        assert free() == wanted


def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph breaks where sizes are symbols."""
    real = tracing.trace

    def broken(snapshot: Any, options: Any, stop: Any, *known: Any) -> Any:
        found = real(snapshot, options, stop, *known)
        if not places_of(found):
            return found
        end = Stop(1, FailedOperation.of(name="f", why="symbols"), UserLine(__file__, 1, "f"))
        return replace(real(snapshot, options, end, *known), inputs=found.inputs)

    monkeypatch.setattr(tracing, "trace", broken)


def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage fails where sizes are symbols."""

    def failing(*args: Any) -> Any:
        raise jitmagic.errors.CompileFailed("no symbols here")

    monkeypatch.setattr(pipeline, "compile_sizes", failing)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("spoil", [breaks, fails])
def test_where_symbols_do_harm_sizes_are_constants(
    spoil: Callable[[pytest.MonkeyPatch], None], fullgraph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)

    @jitmagic.jit(backend="aot_eager", fullgraph=fullgraph)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(0)

    for n in (4, 6, 9):
        x = torch.randn(n, 3)
        same(f(x), x.relu().sum(0))
    known = handle_of(f)
    assert len(known.dispatcher.entries) == 3
    assert all(entry.notes.outcome == COMPILED for entry in known.dispatcher.entries)
    constants = [
        [one.name for one in record.result("trace").specialized] for record in known.journal
    ]
    assert constants == [[], ["x.shape[0]"], ["x.shape[0]"]]


def test_numbers_and_tensors_by_name() -> None:
    @jitmagic.jit(backend="eager", dynamic={"n": ..., "rate": ..., "x": ...})
    def f(x: torch.Tensor, n: int, rate: float, scale: float = 2.0) -> Any:
        return x[:n] * rate * scale, n + 1

    for k in (3, 4, 6):
        for x in (torch.randn(k + 2, k), torch.randn(k + 1, 2 * k)[:, ::2]):
            same(f(x, k, k / 4), (x[:k] * (k / 4) * 2, k + 1))
            same(f(x, rate=np.float64(k / 3), n=k), (x[:k] * (k / 3) * 2, k + 1))
    assert compiles(f) == 4  # x is dense or not, the rate is of Python or of numpy


@pytest.mark.parametrize(
    "given",
    [
        *({"x": 3}, {1: ...}, {"x": {0: ...}}, {"x": {0: (5, 2)}}, {1: {}}, {"x": {-1: None}}),
        *({"y": {0: None}}, {"y": ...}, "yes"),
    ],
)
def test_bad_options(given: Any) -> None:
    with pytest.raises(jitmagic.OptionError):
        jitmagic.jit(lambda x: x, dynamic=given)


@pytest.mark.parametrize("name", ["shapes", "attention", "index"])
def test_native_and_readable_check_agree(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return PROGRAMS[name](x)

    made = jitmagic.jit(program, backend="eager", dynamic=True)
    made(torch.randn(8, 16))
    guards = [
        guard
        for guard in handle_of(made).journal.records[0].result("trace").guards
        if isinstance(guard, SizesRelate)
    ]
    steps, _ = lower_guards(guards, (), {}, {})
    answers = set()
    for n in (*SIZES, 0, 1):
        for x in (torch.randn(n, 16), torch.randn(16, n).t(), torch.randn(n, 8)):
            held = GuardProgram(steps).check((x,))
            assert held == (check(guards, FrameSnapshot.of_call(program, (x,))) is None)
            answers.add(held)
    assert answers == {True, False}


def test_nothing_of_the_call_stays_alive() -> None:
    made = tagged(PROGRAMS["shapes"], backend="aot_eager", dynamic=True)
    x = torch.randn(8, 16)
    made(x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_a_symbol_of_another_rank_says_nothing() -> None:
    """A dimension that was a symbol of a matrix is none of a vector."""

    @jitmagic.jit(backend="eager", options={"on_error": "raise"})
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2

    for shape in ((4, 3), (4, 5), (7,), (9, 2), (), (3, 4, 5), (6,)):
        x = torch.randn(shape)
        same(f(x), x.relu() * 2)


class Decaying(torch.nn.Module):
    """A parameter that is written to, beside a size that a call wants as an int."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rolled = x.roll(x.shape[0] // 2, 0)
        with torch.no_grad():
            self.weight.mul_(0.9)
        return rolled


def test_a_parameter_is_written_at_every_size() -> None:
    plain, compiled = Decaying(), jitmagic.jit(Decaying(), options={"keep": "compiled"})
    for n in SIZES[:4]:
        x = torch.randn(n, n + 1)
        torch.testing.assert_close(compiled(x), plain(x))
        torch.testing.assert_close(compiled.weight, plain.weight)
