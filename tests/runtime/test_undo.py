"""What a graph wrote to its inputs before it raised is not written a second time by eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.runtime.native import undoing


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


def test_the_inputs_go_back_when_the_graph_raises() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        y.fill_(7)
        raise IndexError("in the graph")

    x, y = torch.ones(2), torch.zeros(2)
    version = y._version
    with pytest.raises(IndexError, match="in the graph"):
        undoing(run, (1,), False)(x, y)
    assert y.tolist() == [0, 0]
    assert y._version == version + 1  # the graph's own write


def test_what_hooks_on_saved_tensors_end_stays_written() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        x.fill_(7)
        error = RuntimeError("enough")
        error.__jitmagic_from_hook__ = True  # type: ignore[attr-defined]
        raise error

    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="enough"):
        undoing(run, (0,), False)(x)
    assert x.tolist() == [7, 7]


def test_a_write_before_an_error_is_made_once() -> None:
    run = jitmagic.jit(shift_and_pick)
    x = torch.zeros(3)
    for times in (1, 2):
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            run(x, torch.tensor([9]))
        assert x.tolist() == [times] * 3


def test_too_much_to_copy_is_written_once_and_the_error_is_the_graphs() -> None:
    run = jitmagic.jit(shift_and_pick)
    x = torch.zeros(600, 600)
    with pytest.raises(IndexError):
        run(x, torch.tensor([999]))
    assert x.unique().tolist() in ([0.0], [1.0])


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
