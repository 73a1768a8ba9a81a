"""Writes to inputs before a graph raised are not repeated by eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.runtime.native import undo_on_error
from tests.covering import covered


def shift_and_pick(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    return x[i]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(5, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, i: Tensor) -> Tensor:
        self.calls += 1
        return self.norm(self.table(i)).sum()


def test_inputs_are_restored_when_the_graph_raises() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        y.fill_(7)
        raise IndexError("in the graph")

    x, y = torch.ones(2), torch.zeros(2)
    version = y._version
    with pytest.raises(IndexError, match="in the graph"):
        undo_on_error(run, (1,), False)(x, y)
    assert y.tolist() == [0, 0]
    assert y._version == version + 1  # the graph's own write


def test_writes_stay_when_a_saved_tensor_hook_ends_the_run() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        x.fill_(7)
        error = RuntimeError("enough")
        error.__jitmagic_from_hook__ = True  # type: ignore[attr-defined]
        raise error

    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="enough"):
        undo_on_error(run, (0,), False)(x)
    assert x.tolist() == [7, 7]


@pytest.mark.parametrize("writes", [False, True])
def test_write_to_an_uncopied_input_marks_the_exception(writes: bool) -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        if writes:
            x.fill_(7)
        raise RuntimeError("unexpected")

    with pytest.raises(RuntimeError, match="unexpected") as raised:
        undo_on_error(run, (), False, (0,))(torch.ones(2))
    assert hasattr(raised.value, "__jitmagic_wrote__") is writes


def test_eager_does_not_repeat_a_write_before_an_unexpected_error() -> None:
    """A mistake of ours is an exception then, never other numbers."""

    def broken(gm: Any, inputs: Any) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            gm(*given)
            raise RuntimeError("a mistake of the compiler")

        return run

    def scaled(x: Tensor, i: Tensor) -> Tensor:
        taken = x[i]  # may raise, before the write
        x.mul_(2)
        return taken

    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="a mistake of the compiler"):
        jitmagic.jit(scaled, backend=broken)(x, torch.tensor([1]))
    assert x.tolist() == [2, 2, 2]


def test_a_write_before_an_error_is_made_once() -> None:
    run = jitmagic.jit(shift_and_pick)
    x = torch.zeros(3)
    for times in (1, 2):
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            run(x, torch.tensor([9]))
        assert x.tolist() == [times] * 3


def pick_after(x: Tensor, i: Tensor) -> Tensor:
    x.mul_(2)
    picked = WEIGHTS[i]
    x.add_(1)
    return picked


def add_picked(x: Tensor, i: Tensor) -> Tensor:
    x[0] = 1
    return x.add_(x[i].sum())


def add_rows(x: Tensor, i: Tensor) -> Tensor:
    x.add_(WIDE[i])
    return x * 2


def cache_twice(x: Tensor, i: Tensor) -> Tensor:
    row = torch.ones(1, 600)
    x.index_copy_(0, i - 3, row)
    return x.index_copy_(0, i, row * x.sum()) @ row.T


def factorize(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    return torch.linalg.cholesky((8.5 - i) * torch.eye(3))


def divide(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    return torch.arange(3) // (i - 999)


def assert_between(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    torch._assert_async(i.sum() < 9)
    return x.mul_(3)


def divide_later(x: Tensor, i: Tensor) -> Tensor:
    y = torch.arange(3) // (i - 999)
    x.add_(1)
    return y


LISTED: list[int] = []


def list_and_pick(x: Tensor, i: Tensor) -> Tensor:
    LISTED.append(1)
    x.add_(1)
    return x[i]


def nonzero_and_pick(x: Tensor, i: Tensor) -> Tensor:
    x.add_(1)
    places = (i > 3).nonzero()
    x.mul_(2)
    return WEIGHTS[i + places.shape[0]]


WEIGHTS, WIDE = torch.arange(8.0), torch.ones(8, 600)
RAISING = [
    shift_and_pick, pick_after, add_picked, add_rows, cache_twice, factorize, divide,
    assert_between, divide_later, list_and_pick, nonzero_and_pick,
]  # fmt: skip
BACKENDS: dict[str, dict[str, Any]] = {
    "native": {},
    "blocks": {"options": {"cpu_tier": "blocks"}},
    "numba": {"options": {"cpu_tier": "numba"}},
    "aten": {"options": {"cpu_tier": "aten"}},
    "unfused": {"options": {"fuse": False}},
    "aot_eager": {"backend": "aot_eager"},
    "eager": {"backend": "eager"},
    "user's": {"backend": lambda gm, inputs: gm.forward},
}


@covered(program=RAISING, backend=BACKENDS, first=[999, 5])
def test_writes_before_an_error_equal_eagers(
    program: Callable[..., Tensor], backend: str, first: int
) -> None:
    def outcome(run: Callable[..., Tensor], number: int, rows: int) -> tuple[Any, ...]:
        LISTED.clear()
        x, said = torch.ones(rows, 600), None
        try:
            run(x, torch.tensor([number]))
        except Exception as error:
            said = type(error), str(error)
        return x.sum().item(), said, len(LISTED)

    for rows in (8, 600):  # 19 kB, 1.4 MB
        run = jitmagic.jit(program, **BACKENDS[backend])
        for number in (first, 5, 999, 999, 5):
            assert outcome(run, number, rows) == outcome(program, number, rows)


@pytest.mark.parametrize("backend", ["native", "aten", "aot_eager"])
def test_inputs_of_uncompiled_sizes_are_restored_too(backend: str) -> None:
    """More vectors of sizes than are compiled: the graph runs op by op for them."""
    how = BACKENDS[backend]
    options = {**how.get("options", {}), "recompile_limit": 1}
    run = jitmagic.jit(pick_after, dynamic=True, **{**how, "options": options})
    for rows in (2, 3, 4, 5, 70):
        for number in (5, 999):
            found = []
            for fn in (run, pick_after):
                x = torch.ones(rows, 600)
                with contextlib.suppress(IndexError):
                    fn(x, torch.tensor([number]))
                found.append(x)
            assert torch.equal(*found)


def test_inputs_are_not_copied_for_a_possible_error() -> None:
    """Kernels write to them when nothing can raise any more."""
    run = jitmagic.jit(pick_after)
    x = torch.ones(600, 600)
    run(x, torch.tensor([1]))
    with torch.profiler.profile() as profile:
        run(x, torch.tensor([1]))
    assert "aten::clone" not in {event.name for event in profile.events()}


def test_an_optimizer_writes_where_it_reads_although_an_embedding_may_raise() -> None:
    """Its kernels come behind what raises: none needs memory of its own for a new parameter."""
    table, weight = torch.randn(50, 64), torch.randn(64, 64, requires_grad=True)
    target = torch.randn(8, 64)

    def step(i: Tensor) -> Tensor:
        loss = ((F.embedding(i, table) @ weight) - target).square().mean()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        return loss

    i = torch.arange(8)
    run = jitmagic.jit(step, fullgraph=True)
    run(i)
    (record,) = handle_of(run).journal
    program = record.result("forward: schedule").program
    assert [store.buffer in program.inputs for store in program.steps[-1].stores] == [True]


@pytest.mark.parametrize("training", [True, False])
def test_buffers_of_a_module_that_raises(training: bool) -> None:
    torch.manual_seed(0)
    plain = Counting().train(training)
    torch.manual_seed(0)
    module = Counting().train(training)
    run = jitmagic.jit(module)
    for indexes in ([0, 1, 2], [0, 7, 2], [3, 1, 2], [0, 7, 2]):
        i = torch.tensor(indexes)
        for forward in (plain, run):
            if max(indexes) < 5:
                forward(i)
                continue
            with pytest.raises(IndexError, match="index out of range in self"):
                forward(i)
        for ours, eager in zip(module.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, eager)
