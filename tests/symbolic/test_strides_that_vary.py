"""Strides that are no products of sizes: rows `x[:, t]`, parts `x[:, :n]`, steps `x[::k]`.

Each program is called with tensors whose strides differ from call to call, and compared with eager:
results, what their strides are, what is written, gradients. One variant serves all but the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.varying.concrete import places_of

LENGTHS = (5, 7, 9, 12, 3, 20)
Make = Callable[[int], torch.Tensor]
Program = Callable[[torch.Tensor], Any]

ROWS: dict[str, Make] = {
    "x[:, t]": lambda n: torch.randn(4, n, 8)[:, 2],
    "x.unbind(1)": lambda n: torch.randn(n + 1, n, 8).unbind(1)[1],
    "x[:, :n]": lambda n: torch.randn(4, n + 2, 8)[:, :n],
    "x[:, ::3]": lambda n: torch.randn(4, 3 * n)[:, ::3],
    "x[:, :6:n]": lambda n: torch.randn(4, 6 * n)[:, :: n - 1][:, :6],
    "x.t()": lambda n: torch.randn(n, n + 3)[:, 1:].t(),
    "transposed": lambda n: torch.randn(n, 6, 9)[..., :8].transpose(0, 1),
    "expanded": lambda n: torch.randn(4, n)[:, 1:2].expand(4, 6),
}


def views(x: torch.Tensor) -> Any:
    return x.reshape(-1) * 2, x.contiguous(), x.t() + 1 if x.dim() == 2 else x.mT + 1


def alike(x: torch.Tensor) -> Any:
    return x.clone(), torch.zeros_like(x) + x, x.cumsum(0), (x * 2).flip(-1)


def told(x: torch.Tensor) -> Any:
    return x * x.stride(0) if x.is_contiguous() else x + max(x.stride()), x.stride()


PROGRAMS: dict[str, Program] = {
    "sums": lambda x: (torch.tanh(x * 2).sum(-1), x.amax(0), x.mean()),
    "views": views,
    "alike": alike,
    "told": told,
    "product": lambda x: (x @ x.mT).relu(),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: torch.cat([x.softmax(-1), x[..., 1:]], -1),
    "vmap": lambda x: torch.vmap(lambda row: row.sin().sum())(x),
}
CASES = [
    *((program, made) for program in PROGRAMS for made in ("x[:, t]", "x[:, :n]")),
    *(("views", made) for made in ROWS if made not in ("x[:, t]", "x[:, :n]")),
]


@pytest.mark.parametrize(("program", "made"), CASES)
def test_one_variant_serves_strides_that_vary(program: str, made: str) -> None:
    fn, make = PROGRAMS[program], ROWS[made]
    compiled = jitmagic.jit(fn)
    for n in LENGTHS:
        x = make(n)
        got, wanted = compiled(x), fn(x)
        torch.testing.assert_close(got, wanted)
        assert _strides(got) == _strides(wanted)
    assert _variants(compiled) == 2


def _variants(compiled: Any) -> int:
    """Columns beyond one step of vectors have a kernel of their own, in the same variant."""
    return len({record.number for record in handle_of(compiled).journal})


def _strides(results: Any) -> Any:
    return [t.stride() for t in tree_leaves(results) if torch.is_tensor(t)]


@pytest.mark.parametrize(("program", "made"), CASES)
def test_gradients_of_rows(program: str, made: str) -> None:
    fn, make = PROGRAMS[program], ROWS[made]
    compiled = jitmagic.jit(fn)
    for n in LENGTHS:
        x = make(n).requires_grad_()
        pairs = [_gradient(each, x) for each in (compiled, fn)]
        torch.testing.assert_close(*pairs)
        assert pairs[0].stride() == pairs[1].stride()
    assert _variants(compiled) == 2


def _gradient(fn: Program, x: torch.Tensor) -> torch.Tensor:
    results = [r for r in tree_leaves(fn(x)) if torch.is_tensor(r)]
    torch.manual_seed(0)
    total = torch.stack([(r * torch.rand_like(r)).sum() for r in results]).sum()
    return torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("tier", ["numba", "aten"])
@pytest.mark.parametrize("program", ["sums", "views", "layer norm"])
def test_other_tiers(program: str, tier: str) -> None:
    fn = PROGRAMS[program]
    compiled = jitmagic.jit(fn, options={"cpu_tier": tier})
    for n in LENGTHS:
        x = ROWS["x[:, :n]"](n)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(handle_of(compiled).journal) == 2


def test_writes_reach_the_callers_row() -> None:
    @jitmagic.jit
    def scale(row: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        row.mul_(by).add_(1)
        return row.sum()

    for n in LENGTHS:
        x, by = torch.randn(4, n, 8), torch.randn(4, n, 8)
        wanted = x.clone()
        total = wanted[:, 1].mul_(by[:, 1]).add_(1).sum()
        torch.testing.assert_close(scale(x[:, 1], by[:, 1]), total)
        torch.testing.assert_close(x, wanted)
    assert len(handle_of(scale).journal) == 2


def test_dynamic_true_is_one_compile_and_false_is_one_for_each() -> None:
    @jitmagic.jit(dynamic=True)
    def of_all(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(0)

    @jitmagic.jit(dynamic=False)
    def of_each(x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(0)

    for n in LENGTHS[:4]:
        x = torch.randn(4, n, 8)[:, 2]
        torch.testing.assert_close(of_all(x), x.relu().sum(0))
        torch.testing.assert_close(of_each(x), x.relu().sum(0))
    assert len(handle_of(of_all).journal) == 1
    assert len(handle_of(of_each).journal) == 4


def test_two_rows_of_one_batch_share_a_stride() -> None:
    @jitmagic.jit
    def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b + a

    for n in LENGTHS:
        x = torch.randn(4, n, 8)
        torch.testing.assert_close(both(x[:, 0], x[:, 1]), x[:, 0] * x[:, 1] + x[:, 0])
    assert len(handle_of(both).journal) == 2
    for n in LENGTHS:  # strides of their own
        a, b = torch.randn(4, n, 8)[:, 0], torch.randn(4, n + 1, 8)[:, 0]
        torch.testing.assert_close(both(a, b), a * b + a)
    assert len(handle_of(both).journal) == 3
    *_, last = handle_of(both).journal.records
    assert len(places_of(last.result("trace"))) == 2


def test_rows_of_a_loop_over_an_inner_dimension() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(4, 8)
        for row in x.unbind(1):
            h = torch.tanh(h @ w + row)
        return h

    compiled, w = jitmagic.jit(run), torch.randn(8, 8)
    for n in LENGTHS:
        x = torch.randn(4, n, 8)
        torch.testing.assert_close(compiled(x, w), run(x, w))
    assert len(handle_of(compiled).journal) == 4  # the frame twice, a round, and what comes after


@pytest.mark.parametrize("written", [lambda v: v[:-1].add_(v[1:]), lambda v: v[1:].copy_(v[:-1])])
def test_writes_over_what_is_read_raise_for_a_size_of_one_value(written: Program) -> None:
    """A comparison leaves the size a symbol that has a single value: so are the strides."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        v = x * (3 if x.shape[1] == 7 else 2)
        written(v)
        return -x

    compiled = jitmagic.jit(shifted)
    for columns in (5, 7, 9):
        for rows in (6, 2):
            x = torch.randn(rows, columns)
            if rows == 2:
                torch.testing.assert_close(compiled(x), shifted(x))
                continue
            with pytest.raises(RuntimeError) as ours:
                compiled(x)
            with pytest.raises(RuntimeError) as eagers:
                shifted(x)
            assert str(ours.value) == str(eagers.value)
