"""Sums at run-time indexes on a GPU: atomic additions, fused with what is added."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from jitmagic.codegen.plan import Call, Launch
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import build_cubins

from .for_gpu import H200, compiled, on_cpu
from .interpreted import run_interpreted

aten = torch.ops.aten
X, ROWS = torch.randn(7, 5), torch.randn(40, 5)
AT, SIGNED = torch.randint(0, 7, (40,)), torch.randint(-7, 7, (40,))


def messages(x: Tensor, to: Tensor, rows: Tensor) -> Tensor:
    """A layer of a graph network: messages are computed where they are accumulated."""
    return torch.zeros_like(x).index_add(0, to, rows.sigmoid() * 2).relu()


PROGRAMS: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "messages": (messages, (X, AT, ROWS)),
    "index_add": (lambda x, i, r: x.index_add(0, i, r, alpha=-0.5), (X, AT, ROWS)),
    "a last dimension": (
        lambda x, i, r: x.index_add(-1, i, r),
        (X.t().contiguous(), AT.int(), ROWS.t().contiguous()),
    ),
    "whole numbers": (lambda x, i, r: x.index_add(0, i, r), (X.long(), AT, (ROWS * 9).long())),
    "scatter_add": (
        lambda x, i, r: x.scatter_add(0, i, r),
        (X.double(), AT.view(20, 2), ROWS[:, :3].double()),
    ),
    "index_put": (
        lambda x, i, r: x.index_put((i,), r, accumulate=True),
        (X, SIGNED, ROWS),
    ),
    "two indexes and a row for all": (
        lambda x, i, j, r: x.index_put((i, j), r, accumulate=True),
        (X, SIGNED, SIGNED.clamp(-5, 4), ROWS[:1, 0]),
    ),
    "indexes apart": (
        lambda x, i, j, r: aten.index_put(x, [i, None, j], r, True),
        (torch.randn(7, 3, 5), SIGNED, SIGNED.clamp(-5, 4), torch.randn(40, 3)),
    ),
    "a gradient of an embedding": (
        lambda g, i: aten.embedding_dense_backward(g.tanh(), i, 7, 2, False),
        (torch.randn(8, 5, 6), AT.view(8, 5)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_match_eager_and_fuse_with_the_added_values(name: str, tmp_path: Any) -> None:
    program, inputs = PROGRAMS[name]
    plan, source = compiled(program, *inputs)
    assert not any(isinstance(step, Call) for step in plan.steps)
    assert sum(isinstance(step, Launch) for step in plan.steps) == 2 + (name == "messages")
    assert source.text.count("tl.atomic_add") == 1
    (got,), _ = run_interpreted(source, on_cpu(plan), [x.clone() for x in inputs])
    torch.testing.assert_close(got, program(*inputs))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_accumulating_kernels_compile(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for program, inputs in PROGRAMS.values():
        plan, source = compiled(program, *inputs)
        build_cubins(source, aligned_arguments(plan, True), H200, Store(tmp_path / "kernels"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bits_fall_back_to_aten(dtype: torch.dtype) -> None:
    plan, _ = compiled(messages, X.to(dtype), AT, ROWS.to(dtype))
    assert [str(step.op) for step in plan.steps if isinstance(step, Call)] == [
        "aten.index_add.default"
    ]


def test_a_fallback_call_takes_scalars_from_the_cpu() -> None:
    plan, _ = compiled(lambda x, i, c: x.index_put((i,), c) + 1, X, AT, torch.tensor(7.0))
    calls = [str(step.op) for step in plan.steps if isinstance(step, Call)]
    assert calls == ["aten.index_put.default"]


def test_masked_writes_do_not_synchronise() -> None:
    plan, _ = compiled(lambda x, m, c: x.index_put((m,), c) + 1, X, X > 0, torch.tensor(7.0))
    assert not any(isinstance(step, Call) for step in plan.steps)
    assert sum(isinstance(step, Launch) for step in plan.steps) == 1


def test_deterministic_algorithms_fall_back_to_aten() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        plan, _ = compiled(messages, X, AT, ROWS)
    finally:
        torch.use_deterministic_algorithms(False)
    assert any(isinstance(step, Call) for step in plan.steps)
