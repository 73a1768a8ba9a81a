"""Softmax, layer norm, batch norm and dropout against eager and float64."""

from __future__ import annotations

import pytest
import torch
from recording import check, clone, externs, record

from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower

aten = torch.ops.aten
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_and_log_softmax(dtype, dim):
    x = torch.randn(6, 9, 5).to(dtype) * 3
    x[1, 2] = float("-inf")
    x[1, 2, 0] = 1
    check(
        lambda x: (aten._softmax(x, dim, False), aten._log_softmax(x, dim, False)), x, exact=False
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_backward(dtype):
    grad, y = torch.randn(4, 7).to(dtype), torch.randn(4, 7).softmax(-1).to(dtype)
    check(lambda g, y: aten._softmax_backward_data(g, y, 1, dtype), grad, y, exact=False)
    check(lambda g, y: aten._log_softmax_backward_data(g, y, 1, dtype), grad, y.log(), exact=False)


def test_softmax_of_a_scalar():
    x = torch.tensor(3.0)
    check(lambda x: (aten._softmax(x, 0, False), aten._log_softmax(x, -1, False)), x, exact=False)
    for op in (aten._softmax_backward_data, aten._log_softmax_backward_data):
        check(lambda g, y, op=op: op(g, y, 0, x.dtype), x, torch.tensor(0.5), exact=False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(4, 16), (2, 3, 4, 5)])
def test_layer_norm(dtype, affine, shape):
    x = (torch.randn(shape) * 2 + 1).to(dtype)
    last = shape[-2:] if len(shape) == 4 else shape[-1:]
    w, b = torch.randn(last).to(dtype), torch.randn(last).to(dtype)
    read = 3 if dtype.itemsize > 2 else 1  # statistics of 16-bit floats are float32

    def normal(x, w=None, b=None):
        return aten.native_layer_norm(x, last, w, b, 1e-5)[:read]

    check(normal, *((x, w, b) if affine else (x,)), exact=False)


@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, False], [False, True, True]])
def test_layer_norm_backward(wanted):
    g, x = torch.randn(3, 4, 16), torch.randn(3, 4, 16)
    w, b = torch.randn(16), torch.randn(16)
    _, mean, rstd = aten.native_layer_norm(x, [16], w, b, 1e-5)

    def backward(*args):
        made = aten.native_layer_norm_backward(args[0], args[1], [16], *args[2:], wanted)
        return [part for part, on in zip(made, wanted) if on]

    check(backward, g, x, mean, rstd, w, b, exact=False)


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (8, 3)])
def test_batch_norm(shape):
    x, g = torch.randn(shape) + 2, torch.randn(shape)
    w, b, mean, var = torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5
    check(
        lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5),
        *(x, w, b, mean, var),
        exact=False,
    )
    check(
        lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5)[0],
        *(x, w, b, mean, var),
        exact=False,
    )
    _, saved, scale = aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)
    check(
        lambda g, x, w, m, r: aten.native_batch_norm_backward(
            g, x, w, None, None, m, r, True, 1e-5, [True, True, True]
        ),
        *(g, x, w, saved, scale),
        exact=False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_the_random_stream_of_eager(dtype, p):
    x = torch.randn(7, 33).to(dtype)
    torch.manual_seed(5)
    graph, expected = record(lambda x: aten.native_dropout(x, p, True), clone(x))
    after = torch.rand(3)
    program = lower(graph, "dropout")
    torch.manual_seed(5)
    results = run(program, [x])
    assert all(torch.equal(a, b) for a, b in zip(results, expected))
    assert torch.equal(torch.rand(3), after), "the generator is not where eager leaves it"


def test_dropout_backward():
    for dtype in FLOATS:
        grad, mask = torch.randn(4, 9).to(dtype), torch.rand(4, 9) > 0.5
        check(lambda g, m: aten.native_dropout_backward(g, m, 1 / 0.7), grad, mask)


def test_empty_normalizations_fall_back():
    x = torch.randn(0, 5)
    fallbacks = ["aten._softmax.default", "aten.native_layer_norm.default"]
    program = check(
        lambda x: (aten._softmax(x, 1, False), *aten.native_layer_norm(x, [5], None, None, 1e-5)),
        x,
        fallbacks=fallbacks,
    )
    assert externs(program) == fallbacks
    check(lambda x: (x.repeat(2, 3), x.new_ones(2, 3).repeat(0, 2)), x)
