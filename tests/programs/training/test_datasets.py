"""Datasets and loaders that a step asks for lengths and items, as loops with a progress line do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import jitmagic

from ..counts import counts_of

ALL = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))
SOME = Subset(ALL, [3, 1, 7])


def lengths(x: Tensor, loader: DataLoader[Any]) -> Any:
    return x / len(loader), len(loader.dataset), f"{len(loader)} batches"  # type: ignore[arg-type]


def items(x: Tensor, index: int) -> Any:
    (pair, label), (other, _) = ALL[index], SOME[1]
    return x * pair.sum() + label + other, len(SOME), len(ConcatDataset([ALL, SOME]))


def all_items(x: Tensor) -> Any:
    return [pair.sum() * x for pair, _ in (SOME[k] for k in range(len(SOME)))]


LOADERS = (
    DataLoader(ALL, 5),
    DataLoader(ALL, 5, drop_last=True, shuffle=True),
    DataLoader(ALL, batch_size=None),
    DataLoader(SOME, 2),
)
CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    *((lengths, (loader,)) for loader in LOADERS),
    *((items, (index,)) for index in (0, 5, -1)),
    (all_items, ()),
)


@pytest.mark.parametrize(("program", "args"), CASES)
def test_lengths_and_items_are_in_the_graph(
    program: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    tagged = jitmagic.jit(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert str(tagged(x, *args)) == str(program(x, *args))
    assert counts_of(tagged).graphs == 1


def test_batches_are_loaded_by_python() -> None:
    def epoch(loader: DataLoader[Any]) -> tuple[Tensor, list[str]]:
        total, lines = torch.zeros(()), []
        for step, (x, _) in enumerate(loader):
            total = total + x.sin().sum()
            lines.append(f"{step}/{len(loader)}")
        return total, lines

    tagged = jitmagic.jit(epoch, backend="eager")
    for loader in LOADERS[:2]:
        torch.manual_seed(1)
        wanted = epoch(loader)
        torch.manual_seed(1)
        got = tagged(loader)
        torch.testing.assert_close(got[0], wanted[0])
        assert got[1] == wanted[1]
