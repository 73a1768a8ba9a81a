"""Fusion decisions, and that fusing changes no result: fused against unfused, both interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitmagic.devices import Target
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Cast, Extern, Load, LoopProgram, Nest, walk
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import Schedule, schedule
from tests.loops.recording import clone, record

from .programs import PROGRAMS, made_inputs
from .random_programs import random_function

TARGET = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")
DEVICE = torch.device("cpu")
aten = torch.ops.aten


def lowered(fn, *inputs) -> LoopProgram:
    graph, _ = record(fn, *[clone(x) for x in inputs])
    return lower(graph, "test")


def scheduled(fn, *inputs, **options) -> Schedule:
    return schedule(lowered(fn, *inputs), TARGET, Options(**options))


def nests(result: Schedule) -> list[Nest]:
    return [step for step in result.program.steps if isinstance(step, Nest)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_computes_what_unfused_computes(name):
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    unfused = lowered(program.fn, *inputs)
    result = schedule(unfused, TARGET, Options())
    verify(result.program)
    first, second = [clone(x) for x in inputs], [clone(x) for x in inputs]
    for a, b in zip(run(result.program, first, "float64"), run(unfused, second, "float64")):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
    run(result.program, first)
    run(unfused, second)
    for a, b in zip(first, second):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert len(nests(result)) == program.nests, result.decisions


LONGER = {
    "cat": lambda y, d: torch.cat([y, y], d),
    "cat_after": lambda y, d: torch.cat([y.abs(), y * 2], d),
    "pad": lambda y, d: torch.constant_pad_nd(y, (0, 3) if d else (0, 0, 0, 3), 0.5),
    "repeat": lambda y, d: y.repeat((1, 2) if d else (2, 1)),
    "part": lambda y, d: y.narrow(d, 0, 1),
    "written": lambda y, d: torch.slice_scatter(torch.cat([y, y], d), y, d, 0, y.shape[d]),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("shape", LONGER)
def test_readers_with_other_extents_than_their_producer(shape, steps, dim):
    def fn(x):
        for _ in range(steps):  # the longer of two values gives the axes their names
            x = x * 0.5 + x
        return [LONGER[shape](x, dim)]

    x = torch.randn(2, 3)
    result = scheduled(fn, x)
    verify(result.program)
    (made,) = run(result.program, [x])
    torch.testing.assert_close(made, fn(x)[0])


@pytest.mark.parametrize("kept", [2, 4, 8, 16, 20, 32])
@pytest.mark.parametrize("first", [0, 4])
def test_readers_of_some_rows_of_groups(kept, first):
    """Sixteen channels of 32 are rows 0 … 3 of 8, which the digits of `c // 4` do not show."""

    def fn(x):
        y = x.view(2, 8, -1).softmax(-1).view(2, 32, 5)
        return y + 1, y[:, first : first + kept] * 2

    x = torch.randn(2, 32, 5)
    result = scheduled(fn, x)
    verify(result.program)
    for made, wanted in zip(run(result.program, [x]), fn(x), strict=True):
        torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    fn, inputs = random_function(seed)
    unfused = lowered(fn, *inputs)
    result = schedule(unfused, TARGET, Options())
    verify(result.program)
    first, second = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got, expected = run(result.program, first), run(unfused, second)
    for a, b in zip([*got, *first], [*expected, *second]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_unfused_when_fusion_is_off(name):
    program = PROGRAMS[name]
    inputs = made_inputs(program)
    unfused = lowered(program.fn, *inputs)
    result = schedule(unfused, TARGET, Options(fuse=False))
    assert len(nests(result)) == sum(isinstance(step, Nest) for step in unfused.steps)
    expected = run(unfused, [clone(x) for x in inputs])
    got = run(result.program, [clone(x) for x in inputs])
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_every_decision_has_a_sentence():
    for name, program in PROGRAMS.items():
        for decision in scheduled(program.fn, *made_inputs(program)).decisions:
            assert decision.reason, name
            assert decision.producer
            assert decision.consumer


def test_softmax_computes_its_exponential_once():
    (nest,) = nests(scheduled(PROGRAMS["softmax_parts"].fn, torch.randn(9, 40)))
    nodes = walk(tuple(store.value for store in nest.stores))
    assert sum(getattr(node, "op", "") == "exp" for node in nodes) == 1


def test_an_escaping_producer_is_stored_and_fused():
    def fn(x):
        y = x.sin()
        return y, y * 2

    (nest,) = nests(scheduled(fn, torch.randn(40, 40)))
    assert len(nest.stores) == 2
    loads = [n for n in walk(tuple(s.value for s in nest.stores)) if isinstance(n, Load)]
    assert {load.buffer for load in loads} == {"x0"}


def test_a_write_to_an_input_comes_after_all_reads():
    def fn(x, y):
        a = x.sum(0)
        x.copy_(y)
        return a

    x, y = torch.randn(30, 20), torch.randn(30, 20)
    result = scheduled(fn, x, y)
    ours = [clone(x), clone(y)]
    (total,) = run(result.program, ours)
    torch.testing.assert_close(total, x.sum(0))
    assert torch.equal(ours[0], y)
    writers = [n for n in nests(result) if any(s.buffer == "x0" for s in n.stores)]
    assert result.program.steps[-1] is writers[-1]


def test_a_shifted_read_of_what_is_overwritten_is_not_fused():
    def fn(x):
        y = x.flip(0) + 1
        x.copy_(y)
        return x

    x = torch.randn(31)
    result = scheduled(fn, x)
    ours = clone(x)
    run(result.program, [ours])
    assert torch.equal(ours, x.flip(0) + 1)
    assert len(nests(result)) == 2
    assert any("overwrite" in d.reason for d in result.decisions)


def test_no_cycle_through_an_extern():
    def fn(x, w):
        a = x.sin()
        b = torch.bmm(a, w)
        return a + b, a

    result = scheduled(fn, torch.randn(3, 16, 16), torch.randn(3, 16, 16))
    kinds = [type(step) for step in result.program.steps]
    assert kinds == [Nest, Extern, Nest]


def test_a_small_product_fuses_with_its_readers_only():
    result = scheduled(
        lambda x, w, b: torch.addmm(b, x.sin(), w).relu() * 2,
        torch.randn(16, 20), torch.randn(20, 24), torch.randn(24),
    )  # fmt: skip
    assert [nest.origins[0] for nest in nests(result)] == ["sin_default", "addmm_default"]
    assert any("operands" in d.reason for d in result.decisions)


def test_a_big_product_stays_a_library_call():
    result = scheduled(lambda x: torch.mm(x, x).relu(), torch.randn(600, 600))
    assert [type(step) for step in result.program.steps] == [Extern, Nest]


def test_draws_keep_their_order():
    def fn(x):
        a = torch.rand_like(x)
        b = torch.rand_like(x)
        return (b + 1) * x, a * x

    result = scheduled(fn, torch.randn(10))
    draws = [step.name for step in result.program.steps if isinstance(step, Extern)]
    assert draws == sorted(draws, key=lambda name: (len(name), name))


def test_a_draw_takes_an_unwritten_tensor_for_its_shape():
    result = scheduled(lambda x: aten.bernoulli.p(torch.empty_like(x), 0.7) * x, torch.randn(50))
    assert [type(step) for step in result.program.steps] == [Extern, Nest]
    roles = [buffer.role for buffer in result.program.buffers.values()]
    assert roles.count("shape") == 1


def test_a_draw_from_values_reads_them():
    def fn(x):
        zeros = torch.empty_like(x)
        return aten.bernoulli.p(zeros, 0.7), aten.bernoulli.default(x.sigmoid()), zeros + x

    result = scheduled(fn, torch.randn(50))
    origins = [origin for nest in nests(result) for origin in nest.origins]
    assert "sigmoid_default" in origins


def test_costly_broadcast_is_not_computed_for_every_row():
    def fn(x, v):
        return x * v.exp().sin()

    result = scheduled(fn, torch.randn(4000, 64), torch.randn(64))
    assert len(nests(result)) == 2
    assert any("many times" in d.reason for d in result.decisions)


def test_few_long_rows_are_not_fused():
    result = scheduled(lambda x: x / x.sum(), torch.randn(1000, 1000))
    assert len(nests(result)) == 2
    assert any("too few" in d.reason for d in result.decisions)


def test_a_long_chain_is_scheduled_in_linear_time():
    def fn(x):
        for _ in range(150):
            x = x * 1.01 + 0.5
        return x

    result = scheduled(fn, torch.randn(8, 8))
    assert 1 <= len(nests(result)) <= 4


def test_fast_precision_drops_the_roundings_between_fused_ops():
    def casts(**options):
        x = torch.randn(8, 8, dtype=torch.bfloat16)
        (nest,) = nests(scheduled(lambda x: (x * 3).sin() * x, x, **options))
        return sum(isinstance(node, Cast) for node in walk((nest.stores[0].value,)))

    assert casts() == casts(precision="fast") + 4


def test_names_are_unique_and_are_identifiers():
    for program in PROGRAMS.values():
        names = [n.name for n in nests(scheduled(program.fn, *made_inputs(program)))]
        assert len(set(names)) == len(names)
        assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (1, 4, 7), (3, 6, 2, 2)])
def test_readers_of_group_norm_are_fused(shape):
    """The rows of the reduction are digits of an axis of its reader."""
    x = torch.randn(shape)
    result = scheduled(lambda x: F.silu(F.group_norm(x, 2)) * 2, x)
    assert len(nests(result)) == 1
    expected = F.silu(F.group_norm(x.double(), 2)) * 2
    torch.testing.assert_close(run(result.program, [x], "float64")[0], expected)
