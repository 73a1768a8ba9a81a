"""Generated Triton on a GPU against eager and float64, and how kernels are loaded and launched."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.codegen.triton.ops import TL_DTYPES
from jitmagic.loops.interp import run
from tests.codegen.test_triton import BINARY, INTEGER, SPECIAL, UNARY, bools, filled, op_program
from tests.processes import run_python
from tests.schedule.programs import PROGRAMS, made_inputs

from .compiled import check, clone, compare, executable, lowered

pytestmark = pytest.mark.device
aten = torch.ops.aten


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda:0").to(dtype)


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def layer_norm(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt() * w + b


# -- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hardswish", "hardsigmoid"])
def test_doubles_are_those_of_eagers_kernel(name):
    """Which multiplies them by 1/6 as a float: 3e-8 off, and eager's."""
    tagged, plain = jitmagic.jit(getattr(F, name)), getattr(F, name)
    x = randn(64, dtype=torch.float64).mul_(4).requires_grad_()
    results = [(y := fn(x), *torch.autograd.grad(y.sum(), x)) for fn in (tagged, plain)]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e-1, 1e-3])
def test_the_epsilon_of_rms_norm(scale, dtype):
    """Where none is given: of what eager computes in, which shows in small numbers."""
    plain = lambda x: F.rms_norm(x, x.shape[-1:])
    x = (randn(8, 64, dtype=dtype) * scale).requires_grad_()
    results = [(y := fn(x), *torch.autograd.grad(y[:, 0].sum(), x)) for fn in _both(plain)]
    torch.testing.assert_close(*results)


def _both(fn: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return jitmagic.jit(fn), fn


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *[x.cuda() for x in made_inputs(program)])


@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax_columns", "diamond", "masked"])
def test_unfused_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *[x.cuda() for x in made_inputs(program)], fuse=False)


LARGE = {
    "chain": (lambda x, y: torch.tanh(x * y + 1).exp() * x, [(4097, 1025)] * 2),
    "persistent rows": (softmax, [(4000, 5000)]),
    "looped rows": (softmax, [(700, 40000)]),
    "few long rows": (softmax, [(3, 300_001)]),
    "full sum": (lambda x: ((x * x).sum(), x.amax(), x.argmax()), [(3000, 3001)]),
    "variance": (lambda x: ((x - x.mean()) ** 2).mean().sqrt(), [(5_000_003,)]),
    "column sums": (lambda x, y: ((x * y).sum(0), x.sum(0)), [(40000, 257)] * 2),
    "column softmax": (lambda x: softmax(x.t()).t(), [(900, 3000)]),
    "layer norm": (layer_norm, [(5000, 1024), (1024,), (1024,)]),
    "transposed": (lambda x, y: x + y.t(), [(3000, 2001), (2001, 3000)]),
    "permuted": (lambda x: x.permute(2, 0, 1).contiguous() * 2, [(70, 130, 90)]),
    "argmin of rows": (lambda x: x.argmin(-1), [(1000, 3000)]),
    "channels": (lambda x: x - x.mean((0, 2, 3), keepdim=True), [(32, 40, 28, 28)]),
    "in place": (lambda x, y: x.copy_(x * 0.9 + y), [(3000, 1000)] * 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LARGE)
def test_large(name, dtype):
    fn, shapes = LARGE[name]
    torch.manual_seed(0)
    check(fn, *[randn(*shape, dtype=dtype) for shape in shapes])


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 127, 129, 1000, 1023, 1025, 4099])
def test_tails(n):
    check(lambda x: (softmax(x), x.sum(0), (x * 2 + 1).double()), randn(5, n))


def test_nan_and_infinity_go_through_reductions():
    x = randn(6, 70)
    x[0, 3], x[1, 69], x[2, 0] = math.nan, math.inf, -math.inf
    x[3] = -math.inf
    x[4, 5] = x[4, 60] = 9.0
    check(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1), x.relu(), x.prod(-1), softmax(x)), x)
    check(lambda x: (x.argmax(-1), x.argmin(-1), x.argmax()), x.nan_to_num(0.0))


def test_reductions_of_every_dtype():
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        x = torch.randint(0, 100, (5, 19), device="cuda:0").to(dtype)
        check(lambda x: (x.amax(-1), x.amin(0), x.sum(-1), x.prod(-1)), x)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = randn(5, 19, dtype=dtype)
        check(lambda x: (x.amax(-1), x.amin(0), x.sum(-1), x.argmax(-1), x.mean(0)), x)


def test_bools_and_fills():
    a, b = randn(7, 30) > 0, randn(7, 30) > 0
    check(bools, a, b)
    check(filled, a, randn(7, 30), torch.arange(210, device="cuda:0").reshape(7, 30))


def test_every_cast():
    for source in TL_DTYPES:
        values = torch.tensor([0.0, 1.0, 2.75, 100.3, -3.6 if source.is_signed else 7.0])
        others = [kind for kind in TL_DTYPES if kind is not source]
        check(lambda x: tuple(x.to(kind) for kind in others), values.to(source).cuda())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_op_on_floats(dtype):
    special = torch.tensor([*SPECIAL, 1e-3, 20.0, -20.0, 88.0, 300.5], dtype=dtype, device="cuda:0")
    many = torch.cat([special, torch.linspace(-9, 9, 4001, device="cuda:0", dtype=dtype)])
    against_eager(op_program(UNARY, dtype, len(many), 1, many.device), [many])
    pairs = torch.cartesian_prod(many[::7], special)
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    against_eager(op_program(BINARY, dtype, len(x), 2, x.device), [x, y])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_every_op_on_integers(dtype):
    x = torch.arange(-40, 40).to(dtype).cuda()
    y = torch.tensor([1, 2, 3, 5, 7]).repeat(16).to(dtype).cuda()
    if dtype != torch.uint8:
        ops = [op for op in INTEGER if "shift" not in op]
        sign = torch.tensor([1, -1]).repeat(40).to(dtype).cuda()
        against_eager(op_program(ops, dtype, 80, 2, x.device), [x, y * sign])
    against_eager(op_program(INTEGER, dtype, 80, 2, x.device), [x, y])


_AT_THE_EDGE = {
    "compared": lambda x: (x.abs() > 0.5, -x > 0.5, x.abs() < 5, -x > 0, x.abs() == x, 5 - x > 0),
    "wider": lambda x: (x.abs().long() + 1, (-x).float() * 2, (-x).long(), (x - 1).long()),
    "computed": lambda x: (-x // 3, (-x).sign(), torch.maximum(x.abs(), x - 1), x * 3 > 0),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("name", _AT_THE_EDGE)
def test_integers_wrap_at_their_least(name, dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, low + 1, -2, -1, 0, 1, 2, high - 1, high], dtype=dtype, device="cuda")
    plain = _AT_THE_EDGE[name]
    for got, want in zip(jitmagic.jit(plain)(x), plain(x), strict=True):
        assert torch.equal(got, want)


def against_eager(program, inputs) -> None:
    """The reference interpreter runs eager's own CUDA kernels."""
    got, expected = executable(program).run(*inputs), run(program, inputs)
    for name, a, b in zip(program.outputs, got, expected):
        double = a.dtype == torch.float64
        tolerance = {"rtol": 1e-14, "atol": 1e-300} if double else {"rtol": 3e-7, "atol": 1e-44}
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance, msg=lambda m: f"{name}: {m}")


def test_sums_and_products_round_as_in_eager():
    """No contraction: what is correctly rounded in eager is the same bits here."""
    program, expected = lowered(lambda x, y: (x * y + x / y - y.sqrt()).abs(), *pair(100_003))
    for got, want in zip(executable(program).run(*pair(100_003)), expected):
        assert torch.equal(got, want)


def pair(n: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [randn(n), randn(n).abs() + 0.1]


POWERS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 0.0)
EDGES = {
    **{f"pow {y}": lambda x, y=y: x**y for y in POWERS},
    **{f"logit {e}": lambda x, e=e: aten.logit_backward(x + 1, x, e) for e in (0.1, 0.7, 2**62)},
    **{f"fill {v}": lambda x, v=v: torch.nan_to_num(x, v, v, -v) for v in (1e-8, 3e-7, 0.0)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EDGES)
def test_edges_as_in_eager(name, dtype):
    """Signs of zero, infinities, and constants too small for six decimals."""
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.25, 4.0]
    check(EDGES[name], torch.tensor(values, dtype=dtype).cuda())


def test_an_index_out_of_range_fails_as_in_eager():
    script = """if True:
        import torch
        from tests.device.compiled import executable, lowered
        table, index = torch.randn(9, 20).cuda(), torch.tensor([0, -1, 5, 8]).cuda()
        program, (want,) = lowered(lambda t, i: t[i] * 2, table, index)
        run = executable(program).run
        assert torch.equal(run(table, index)[0], want)
        try:
            run(table, torch.tensor([0, 9, 5, 8]).cuda())
            torch.cuda.synchronize()
        except RuntimeError as error:
            print("assert" in str(error))
    """
    done = run_python(script)
    assert done.stdout.strip().endswith("True"), done.stdout + done.stderr


# -- loading and launching -----------------------------------------------------------------------


def test_inputs_off_the_boundary():
    memory = randn(100_003)
    fn = lambda x, y: (x * 2 + y).exp()
    program, _ = lowered(fn, memory[:100_000], memory[:100_000])
    run = executable(program).run
    for first, second in ((0, 0), (1, 0), (0, 3), (2, 2)):
        x, y = memory[first : first + 100_000], memory[second : second + 100_000]
        torch.testing.assert_close(run(x, y)[0], fn(x, y))


def test_kernels_come_from_the_cache(tmp_path):
    program, _ = lowered(softmax, randn(300, 500))
    assert not executable(program, cache_dir=str(tmp_path)).cached
    assert executable(program, cache_dir=str(tmp_path)).cached


def test_the_current_stream_is_used():
    program, _ = lowered(lambda x: x * 2 + 1, randn(10))
    run = executable(program).run
    stream, x = torch.cuda.Stream(), torch.zeros(10, device="cuda:0")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        (y,) = run(x)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 7.0))


def test_a_thread_that_never_used_the_gpu():
    program, _ = lowered(lambda x: x * 2 + 1, randn(10))
    run, x, results = executable(program).run, randn(10), []

    def work() -> None:
        results.append(run(x)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(results[0], x * 2 + 1)


def test_large_shared_memory_and_many_arguments():
    inputs = [randn(100) for _ in range(30)]
    check(lambda *xs: [sum(xs[n:]) for n in range(0, 30, 3)], *inputs)


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = torch.device("cuda", 1)
    x = torch.randn(300, 400, device=other)
    program, (want,) = lowered(softmax, x)
    (got,) = executable(program, other).run(clone(x))
    assert got.device == other
    compare([got], [want], run(program, [clone(x)], "float64"))
    assert torch.cuda.current_device() == 0
