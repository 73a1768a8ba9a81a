"""Attention that a program writes out: spellings that become one fused call, and those that stay.

Lengths and dtypes for which the fused kernels are worth it are of no interest here: all are. The
last test has the CPU's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

import jitmagic
from jitmagic.devices import CPU_ROW, AttentionFacts, add
from jitmagic.errors import FallbackWarning
from jitmagic.lazy_dataclass import replace
from jitmagic.records import watchers

from ...covering import covered
from .attention_spellings import (
    FUSED,
    INF,
    D,
    Function,
    N,
    alibi,
    bias,
    causal_filled,
    different_fills,
    dropped,
    hooked,
    in_float64,
    other_dimension,
    padding,
    part_written,
    plain,
    query_written,
    scores_read,
    small_fill,
    softcapped,
    two_layers,
    weights_normalised,
    weights_returned,
)


@pytest.fixture(autouse=True)
def fused_at_any_size() -> Iterator[None]:
    def attention(facts: AttentionFacts) -> tuple[SDPBackend, ...]:
        return (SDPBackend.FLASH_ATTENTION,)

    add(replace(CPU_ROW, attention=attention))
    yield
    add(CPU_ROW)


DTYPES = [torch.float32, torch.float64, torch.bfloat16]


class Seen(NamedTuple):
    results: list[Tensor | None]
    calls: int  # of fused attention in the forward graphs
    notes: tuple[str, ...]


def inputs(dtype: torch.dtype, grad: bool) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    made = [torch.randn(2, 3, N, D, generator=draw).to(dtype) for _ in range(3)]
    return [each.requires_grad_(grad) for each in made]


def run(fn: Function, args: list[Any], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """Return the result and the gradients."""
    given = [a.detach().to(dtype or a.dtype).requires_grad_(a.requires_grad) for a in args]
    result = fn(*given)
    if result.requires_grad:
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).to(result.dtype)
        (result * weights.view_as(result)).sum().backward()
    return [result.detach(), *(each.grad for each in given)]


def observed(fn: Function, args: list[Any], **options: Any) -> Seen:
    """Compile and run, and count the calls of fused attention."""
    calls, notes = 0, list[str]()

    def watch(record: Any, stage: Any, begins: bool) -> None:
        nonlocal calls
        if not begins and stage.stage == "attention":
            notes.extend(stage.result)
        if not begins and stage.stage == "partition" and stage.result is not None:
            nodes = stage.result.forward.graph.nodes
            calls += sum("scaled_dot_product" in str(node.target) for node in nodes)

    watchers.append(watch)
    try:
        results = run(jitmagic.jit(fn, **options), args)
    finally:
        watchers.remove(watch)
    return Seen(results, calls, tuple(notes))


def check(fn: Function, args: list[Any], calls: int, **options: Any) -> tuple[str, ...]:
    """Compare with eager, whose error against float64 is the measure, and count the calls."""
    eager, exact = run(fn, args), run(fn, args, torch.float64)
    seen = observed(fn, args, **options)
    assert seen.calls == calls, seen.notes
    for ours, one, judge in zip(seen.results, eager, exact, strict=True):
        if one is None or ours is None or judge is None:
            assert ours is one
            continue
        assert (ours.dtype, ours.shape, ours.stride()) == (one.dtype, one.shape, one.stride())
        assert torch.equal(ours.isnan(), one.isnan())
        errors = [(each - judge).nan_to_num(0.0).double() for each in (ours, one)]
        mine, its = (error.square().mean().sqrt().item() for error in errors)
        rounding = 4 * torch.finfo(one.dtype).eps * judge.nan_to_num(0.0).abs().max().item()
        assert mine <= 1.5 * its + (rounding if one.dtype is torch.float64 else rounding / 8)
    return seen.notes


@covered(fn=FUSED, dtype=DTYPES, grad=[False, True], dynamic=[False, True])
def test_spellings_become_one_call(
    fn: Function, dtype: torch.dtype, grad: bool, dynamic: bool
) -> None:
    calls = 2 if fn is two_layers else 1
    if fn is alibi and grad and dynamic:
        calls = 0  # at other sizes its bias might mask a row
    check(fn, inputs(dtype, grad), calls, dynamic=dynamic)


# -- rows without a column to attend to ------------------------------------------------------------


def filled(value: float) -> Function:
    def fn(q, k, v):
        return (q @ k.mT).masked_fill(padding(q, dead=True), value).softmax(-1) @ v

    return fn


def biased(q, k, v, b):
    return (q @ k.mT * 0.3 + b).softmax(-1) @ v


def biased_and_filled(q, k, v, b):
    return (q @ k.mT * 0.3 - b).masked_fill(padding(q), -INF).softmax(-1) @ v


@covered(value=[-INF, -1e9], dtype=DTYPES, grad=[False, True])
def test_rows_that_a_mask_fills_are_as_in_eager(
    value: float, dtype: torch.dtype, grad: bool
) -> None:
    check(filled(value), inputs(dtype, grad), 1)


@covered(
    shape=[(N, N), (1, 3, N, N), (2, 1, N, N)],
    dead=[False, True],
    dtype=[torch.float32, torch.bfloat16],  # the sum with -1e9 is rounded in float64 too
    fn=[biased, biased_and_filled],
)
def test_rows_of_a_bias_are_as_in_eager(
    shape: tuple[int, ...], dead: bool, dtype: torch.dtype, fn: Function
) -> None:
    b = bias(*shape, dead=dead).to(dtype)
    check(fn, [*inputs(dtype, False), -b if fn is biased_and_filled else b], 1)


def test_a_bias_of_float16_is_fused_in_training() -> None:
    """Its lowest number does not absorb scores, so that rows of it have eager's gradients."""
    check(biased, [*inputs(torch.float16, True), bias(N, N, dead=True).clamp(-6e4).half()], 1)


# -- what stays ------------------------------------------------------------------------------------


STAY: dict[Function, str] = {
    weights_returned: "used elsewhere",
    scores_read: "used elsewhere",
    hooked: "used elsewhere",
    dropped: "dropout",
    other_dimension: "not over the last dimension",
    softcapped: "",
    weights_normalised: "",
    small_fill: "fills scores with -10",
    different_fills: "different numbers",
    query_written: "written to",
    part_written: "a part of it is written to",
    in_float64: "float64",
}


@pytest.mark.parametrize("fn", STAY)
def test_stays_written_out(fn: Function) -> None:
    if fn is dropped:
        seen = observed(fn, inputs(torch.float32, True))
        torch.manual_seed(0)
        expected = run(fn, inputs(torch.float32, True))
        torch.manual_seed(0)
        results = run(jitmagic.jit(fn), inputs(torch.float32, True))
        torch.testing.assert_close(results, expected)
        assert seen.calls == 0
        notes = seen.notes
    else:
        notes = check(fn, inputs(torch.float32, fn not in (in_float64, query_written)), 0)
    assert STAY[fn] in " ".join(notes)
    assert bool(STAY[fn]) == bool(notes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_stays_where_gradients_would_differ(dtype: torch.dtype) -> None:
    """Rows of the lowest numbers, and a bias that gets a gradient."""
    given = inputs(dtype, True)
    (note,) = check(biased, [*given, bias(N, N, dead=True).to(dtype)], 0)
    assert "whose gradients would differ" in note
    learned = torch.randn(3, N, N).to(dtype).requires_grad_()
    (note,) = check(biased, [*given, learned], 0)
    assert "differentiates a bias" in note


def test_a_wider_bias_stays_unless_precision_is_fast() -> None:
    q, k, v = inputs(torch.bfloat16, False)
    b = torch.randn(N, N)

    def fn(q, k, v, b):
        return (q @ k.mT + b).softmax(-1).to(v.dtype) @ v

    seen = observed(fn, [q, k, v, b])
    assert seen.calls == 0
    assert "wider dtype" in seen.notes[0]
    assert observed(fn, [q, k, v, b], options={"precision": "fast"}).calls == 1


# -- around it -------------------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.project = nn.Linear(24, 72), nn.Linear(24, 24)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            part.view(b, n, 3, c // 3).transpose(1, 2) for part in self.attend(x).split(c, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :n, :n] == 0, -INF)
        y = F.softmax(scores, dim=-1) @ v
        return self.project(y.transpose(1, 2).contiguous().view(b, n, c))


@pytest.mark.parametrize("autocast", [False, True])
def test_a_block_with_a_mask_in_a_buffer(autocast: bool) -> None:
    torch.manual_seed(1)
    heads = Heads()
    x = torch.randn(2, N, 24)

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return heads(x)

    seen = observed(fn, [x.requires_grad_()])
    expected = run(fn, [x])
    assert seen.calls == 1
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if autocast else {}
    torch.testing.assert_close(seen.results, expected, **tolerance)


def test_results_and_operands_may_be_written_to_before_the_backward() -> None:
    """Eager saves neither the result nor, without a gradient of the key, the query."""

    def fn(q, k, v):
        result = (q @ k.mT).softmax(-1) @ v
        result += 1
        return result

    jitted = jitmagic.jit(fn)
    known = None
    for call in (fn, jitted):
        q, k, v = inputs(torch.float32, True)
        k = k.detach()
        taken = q * 1
        result = call(taken, k, v)
        result.mul_(2)
        with torch.no_grad():
            taken.zero_()
        result.sum().backward()
        known = q.grad if known is None else known
        torch.testing.assert_close(q.grad, known)


def test_second_derivatives_are_those_of_the_program() -> None:
    q, k, v = inputs(torch.float64, True)

    def second(fn: Function) -> list[Tensor]:
        (first,) = torch.autograd.grad(fn(q, k, v).square().sum(), q, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), (q, k, v)))

    with pytest.warns(FallbackWarning, match="twice"):
        found = second(jitmagic.jit(causal_filled))
    torch.testing.assert_close(found, second(plain_causal))


def plain_causal(q, k, v):
    return causal_filled(q, k, v)


def test_backward_inside_the_program() -> None:
    def fn(q, k, v):
        (first,) = torch.autograd.grad(plain(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), k)[0]

    args = inputs(torch.float64, True)
    torch.testing.assert_close(jitmagic.jit(fn)(*args), fn(*args))


def test_nothing_is_fused_without_fusion() -> None:
    assert observed(plain, inputs(torch.float32, False), options={"fuse": False}).calls == 0


@pytest.mark.parametrize(
    ("length", "dtype", "grad", "calls"),
    [
        (128, torch.float32, False, 0),
        (256, torch.float32, False, 1),
        (256, torch.float32, True, 0),
        (1024, torch.float32, True, 1),
        (1024, torch.bfloat16, False, 0),
    ],
)
def test_lengths_on_a_cpu(length: int, dtype: torch.dtype, grad: bool, calls: int) -> None:
    add(CPU_ROW)
    args = [torch.randn(2, 2, length, 8, dtype=dtype, requires_grad=grad) for _ in range(3)]
    check(plain, args, calls)
