"""The pool: lifetimes never overlap in memory, memory is reused, outputs are not in it."""

from __future__ import annotations

import pytest
import torch

import jitmagic
from jitmagic.devices import CUDA_ROW
from jitmagic.loops.ir import Nest
from jitmagic.schedule import memory
from jitmagic.schedule.dependencies import reads_of, writes_of
from jitmagic.schedule.memory import storage_bytes
from jitmagic.schedule.result import Schedule

from .programs import PROGRAMS, made_inputs
from .test_fusion import scheduled


def lifetimes(result: Schedule) -> dict[str, tuple[int, int]]:
    born: dict[str, int] = {}
    for number, step in enumerate(result.program.steps):
        for name in writes_of(step):
            born.setdefault(name, number)
    return {name: (born[name], result.last_use[name]) for name in result.pool}


def overlapping(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def layers(x, *weights):
    for w in weights:
        x = torch.bmm(x, w).relu().sin()
    return x


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_live_temporaries_never_share_memory(name, fuse):
    program = PROGRAMS[name]
    check_pool(scheduled(program.fn, *made_inputs(program), fuse=fuse))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Allocate every temporary separately, as large ones are on a GPU."""
    monkeypatch.setattr(memory, "row_of", lambda device: CUDA_ROW)
    monkeypatch.setattr(memory, "_LARGE", 1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_separate_temporary_reuses_a_dying_operand(name, as_on_a_gpu):
    program = PROGRAMS[name]
    result = scheduled(program.fn, *made_inputs(program))
    assert not result.pool
    for target, source in result.reused.items():
        (writer,) = (n for n, s in enumerate(result.program.steps) if target in writes_of(s))
        assert source not in (*result.program.inputs, *result.program.outputs)
        assert result.last_use[source] == writer


def convolved(x, *weights):
    for w in weights:
        x = torch.conv2d(x, w, padding=1).relu() + 1
    return x.sum(0)


@pytest.mark.parametrize("fn", [convolved, lambda x, *w: layers(x[:, 0], *(v[:, 0] for v in w))])
def test_memory_of_aten_results_is_reused(fn, as_on_a_gpu):
    inputs = [torch.randn(3, 3, 3, 3) for _ in range(5)]
    result = scheduled(fn, *inputs)
    assert result.reused
    want = fn(*inputs)
    torch.testing.assert_close(jitmagic.jit(fn)(*inputs), want, rtol=1e-4, atol=1e-4)


def check_pool(result: Schedule) -> None:
    life = lifetimes(result)
    buffers = result.program.buffers
    for a in result.pool:
        assert result.pool[a] % 64 == 0
        assert a not in result.program.outputs
        assert result.pool[a] + storage_bytes(buffers[a]) <= result.pool_bytes
        for b in result.pool:
            if a < b and overlapping(life[a], life[b]):
                first = range(result.pool[a], result.pool[a] + storage_bytes(buffers[a]))
                assert (
                    result.pool[b] >= first.stop
                    or result.pool[b] + storage_bytes(buffers[b]) <= first.start
                )


def test_memory_is_reused_along_a_chain_of_layers():
    weights = [torch.randn(2, 32, 32) for _ in range(6)]
    result = scheduled(layers, torch.randn(2, 32, 32), *weights)
    check_pool(result)
    assert result.pool_bytes <= 2 * 2 * 32 * 32 * 4


def test_a_pointwise_nest_may_write_over_its_dying_operand():
    result = scheduled(lambda x: torch.bmm(x.sin(), x).relu().median(0)[0], torch.randn(2, 16, 16))
    relu = next(s for s in result.program.steps if isinstance(s, Nest) and "relu" in s.name)
    (source,), (target,) = reads_of(relu), writes_of(relu)
    assert result.pool[source] == result.pool[target]


def test_an_operand_that_a_view_reads_elsewhere_is_not_written_over():
    def sum_with_turned(x):
        y = x * 2 + 1
        return (y * 3 + y.as_strided((16, 16), (1, 16))).median(0)[0]

    x = torch.randn(16, 16)
    result = scheduled(sum_with_turned, x)
    check_pool(result)
    nest = next(s for s in result.program.steps if isinstance(s, Nest) and len(reads_of(s)) == 2)
    (target,) = writes_of(nest)
    assert {name for name in reads_of(nest) if name in result.pool}
    assert all(result.pool.get(name) != result.pool[target] for name in reads_of(nest))
    torch.testing.assert_close(jitmagic.jit(sum_with_turned)(x), sum_with_turned(x))


def _independent_chains(table, w, *saved):
    """Each chain starts anew from saved values, as backwards of checkpointed regions do; they
    meet.
    """
    total = torch.zeros_like(table)
    for x in saved:
        again = (torch.mm(x, w) * table).sin()
        total = torch.mm(again + total, w).cos()
    return total


def test_independent_chains_are_not_all_started_first():
    def pool(count: int) -> int:
        inputs = [torch.randn(40, 40, dtype=torch.float64) for _ in range(count + 2)]
        return scheduled(_independent_chains, *inputs).pool_bytes

    assert pool(12) <= pool(3)


def mlp(x, w, v):
    return (torch.nn.functional.gelu(x @ w.t()) @ v.t()).sum(0)


def test_a_linear_layers_result_is_written_over_in_another_shape():
    inputs = torch.randn(3, 5, 16), torch.randn(48, 16), torch.randn(16, 48)
    result = scheduled(mlp, *inputs)
    check_pool(result)
    gelu = next(s for s in result.program.steps if isinstance(s, Nest) and "erf" in s.name)
    (source,), (target,) = reads_of(gelu), writes_of(gelu)
    buffers = result.program.buffers
    assert buffers[source].shape != buffers[target].shape
    assert result.pool[source] == result.pool[target]
    torch.testing.assert_close(jitmagic.jit(mlp)(*inputs), mlp(*inputs))


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.view(4, 4, 16), lambda y: y.view(16, 16).t(), lambda y: y.view(256)[:256],
        lambda y: y.flip(0), lambda y: y.view(2, 128).roll(1, 1), lambda y: y.view(8, 32)[1:],
        lambda y: y.view(16, 16) + y.view(16, 16).t(),
        lambda y: y.view(2, 8, 16)[1] * y.view(16, 16)[:8],
    ],
)  # fmt: skip
def test_operands_in_other_shapes(view, tier):
    def fn(x, w):
        y = torch.mm(x, w).view(-1)
        return torch.mm((view(y) * 2).reshape(-1, 16).tanh(), w).cumsum(0)

    x, w = torch.randn(16, 16), torch.randn(16, 16) / 4
    check_pool(scheduled(fn, x, w))
    got = jitmagic.jit(fn, options={"cpu_tier": tier})(x, w)
    torch.testing.assert_close(got, fn(x, w))
