"""Kernels of products with quantised weights against eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.codegen.plan import Call
from jitmagic.loops.ir import Extern
from tests.codegen.accuracy import compare
from tests.programs.quantised_weights import PROGRAMS, exact_run, made_inputs

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def jitted(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return jitmagic.jit(fn, options={"on_error": "raise", "keep": "compiled", **options})


def checked(run: Callable[..., Tensor], name: str, inputs: tuple[Tensor, ...]) -> None:
    wide = (x.double() if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        compare(run(*inputs), PROGRAMS[name].run(*inputs), exact_run(name)(*wide), name)


def steps_of(run: Callable[..., Any]) -> list[Any]:
    (record,) = handle_of(run).journal.records
    return list(record.result("forward: schedule").program.steps)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_values(name, dtype):
    run = jitted(PROGRAMS[name].run)
    checked(run, name, made_inputs(PROGRAMS[name], (3,), 48, 256, dtype))
    assert not any(isinstance(step, Extern) for step in steps_of(run))
    plan, _ = handle_of(run).journal.records[0].result("forward: render")
    assert not any(isinstance(step, Call) for step in plan.steps), "no library call"


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 15, 31, 32, 70])
@pytest.mark.parametrize(("n", "k"), [(37, 100), (16, 16), (129, 333)])
def test_sizes_that_fill_no_register(rows, n, k):
    name = "scaled weight"
    checked(jitted(PROGRAMS[name].run), name,
            made_inputs(PROGRAMS[name], (rows,), n, k, torch.float32))  # fmt: skip


def test_a_last_group_that_is_shorter():
    name = "repeated groups"
    for k in (100, 17):
        checked(jitted(PROGRAMS[name].run), name,
                made_inputs(PROGRAMS[name], (4,), 32, k, torch.bfloat16))  # fmt: skip


def test_one_kernel_for_all_numbers_of_rows():
    name = "scaled weight"
    run = jitted(PROGRAMS[name].run, dynamic={"x": {0: (2, 64)}})
    for rows in (3, 40, 33, 2, 8):
        checked(run, name, made_inputs(PROGRAMS[name], (rows,), 48, 128, torch.bfloat16))
    assert len(handle_of(run).journal.records) == 1
    assert not any(isinstance(step, Extern) for step in steps_of(run))


@pytest.mark.parametrize("shape", [(2, 3), (1, 1)])
def test_batches_and_positions(shape):
    for name in ("scaled weight", "torchao"):
        checked(jitted(PROGRAMS[name].run), name,
                made_inputs(PROGRAMS[name], shape, 48, 64, torch.float32))  # fmt: skip


def test_no_rows():
    name = "scaled result"
    checked(jitted(PROGRAMS[name].run), name,
            made_inputs(PROGRAMS[name], (0,), 48, 64, torch.float32))  # fmt: skip


@pytest.mark.parametrize("k", [64, 100])
def test_nan_and_infinity(k):
    name = "scaled weight"
    x, q, scale = made_inputs(PROGRAMS[name], (4,), 48, k, torch.float32)
    x[0, 3], x[1, 5], scale[7], scale[9] = torch.nan, torch.inf, torch.inf, torch.nan
    q[7] = q[7].abs() + 1
    with torch.no_grad():
        got, eager = jitted(PROGRAMS[name].run)(x, q, scale), PROGRAMS[name].run(x, q, scale)
    torch.testing.assert_close(got, eager, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_activations_of_any_strides():
    name = "scaled weight"
    x, q, scale = made_inputs(PROGRAMS[name], (6,), 48, 128, torch.bfloat16)
    for other in (x.t().contiguous().t(), x[::2], x.flip(0)[1:], x[:, ::2]):
        checked(jitted(PROGRAMS[name].run), name, (other, q[:, : other.shape[1]], scale))


def test_gradients_of_activations():
    x, q, scale = made_inputs(PROGRAMS["scaled weight"], (4,), 48, 64, torch.float32)
    given = [x.clone().requires_grad_() for _ in range(2)]
    for run, one in zip(
        (jitted(PROGRAMS["scaled weight"].run), PROGRAMS["scaled weight"].run), given
    ):
        run(one, q, scale).square().sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-4, atol=1e-4)


def test_two_layers_and_what_is_between_them():
    def layers(x, q, scale, r, other):
        h = F.silu(F.linear(x, q.to(x.dtype)) * scale)
        return F.linear(h, (r * other[:, None]).to(x.dtype)).softmax(-1)

    x, q, scale = made_inputs(PROGRAMS["scaled weight"], (2,), 64, 128, torch.float32)
    _, r, other = made_inputs(PROGRAMS["scaled weight"], (2,), 32, 64, torch.float32)
    with torch.no_grad():
        run = jitted(layers)
        got, eager = run(x, q, scale, r, other), layers(x, q, scale, r, other)
    torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(step, Extern) for step in steps_of(run))


FLOAT8 = ["scaled result", "groups of 32", "one scale", "bias and activation", "torchao"]


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_float8_weights(name, dtype, rows):
    narrow = torch.float8_e4m3fn
    x, q, scale = made_inputs(PROGRAMS[name], (rows,), 48, 256, dtype, narrow)
    run = jitted(PROGRAMS[name].run)
    with torch.no_grad():
        got, eager = run(x, q, scale), PROGRAMS[name].run(x, q, scale)
        exact = exact_run(name)(x.double(), q.double(), scale.double())
    compare(got, eager, exact, name)
    assert not any(isinstance(step, Extern) for step in steps_of(run))


def test_all_float8_numbers():
    q = torch.zeros(256, 16).to(torch.float8_e4m3fn)
    q[:, 0] = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    x = torch.zeros(2, 16)
    x[:, 0] = 1
    with torch.no_grad():
        got, eager = (fn(x, q) for fn in (jitted(_by_numbers), _by_numbers))
    torch.testing.assert_close(got, eager, rtol=0, atol=0, equal_nan=True)


def _by_numbers(x: Tensor, q: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype))
