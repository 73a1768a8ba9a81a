"""One variant serves varying windows, steps and numbers of parts.

Each program is called with a number that varies, at values that eager takes and at edges that it
may refuse: results, strides and gradients are eager's, and so is what is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.varying.concrete import places_of
from tests.covering import covered

Program = Callable[[torch.Tensor, int], Any]
PROGRAMS: dict[str, Program] = {
    "avg_pool1d": lambda x, n: F.avg_pool1d(x[0], n),
    "avg_pool2d": lambda x, n: F.avg_pool2d(x, n),
    "its stride": lambda x, n: F.avg_pool2d(x, 3, n, 1),
    "max_pool1d": lambda x, n: F.max_pool1d(x[0], n),
    "max_pool2d": lambda x, n: F.max_pool2d(x, n),
    "lp_pool": lambda x, n: F.lp_pool1d(x[0].abs() + 1, 2, n),
    "unfold": lambda x, n: F.unfold(x, n),
    "step of unfold": lambda x, n: F.unfold(x, 2, stride=n),
    "pixel_shuffle": lambda x, n: F.pixel_shuffle(x.flatten(1, 2).reshape(2, 144, 2, 8), n),
    "pixel_unshuffle": lambda x, n: F.pixel_unshuffle(x, n),
    "group_norm": lambda x, n: F.group_norm(x.reshape(2, 24, 96), n),
    "rows of windows": lambda x, n: x.unfold(2, n, 3).sum((2, 4)),
    "steps of rows": lambda x, n: x.unfold(-1, 3, n).sum((3, 4)),
    "every nth": lambda x, n: x[:, :, 1::n] * 2,
    "diag": lambda x, n: torch.diag(x[0, 0], n) * 2,
    "diag_embed": lambda x, n: torch.diag_embed(x[0, 0], n),
    "channel_shuffle": lambda x, n: F.channel_shuffle(x.transpose(1, 2), n),
}
SIDE_BY_SIDE = ("rows of windows", "steps of rows")  # windows that do not overlap are dense
VALUES = (2, 3, 4, 6, 12, 3, 8)
EDGES = (1, 24, 25, 0, -1, 5, 7)


VIEWS: dict[str, Program] = {
    "diagonal": lambda x, n: x.diagonal(n, 2, 3),
    "of other dimensions": lambda x, n: torch.diagonal(x, n, -1, 2),
    "unfold": lambda x, n: x.unfold(2, n, 2),
    "slice": lambda x, n: x[..., ::n],
}


def answer(fn: Program, x: torch.Tensor, n: int, train: bool) -> list[Any]:
    """Result and gradient, or the error."""
    x = x.detach().clone().requires_grad_(train)
    try:
        result = fn(x, n)
    except Exception as error:
        return [type(error), str(error)]
    if not train:
        return [result, result.stride()]
    return [result.detach(), result.stride(), *torch.autograd.grad(result.square().sum(), x)]


def compare(made: Program, plain: Program, x: torch.Tensor, n: int, train: bool) -> None:
    for found, wanted in zip(answer(made, x, n, train), answer(plain, x, n, train), strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted


@covered(name=PROGRAMS, backend=["eager", "native"], train=[False, True])
def test_a_number_that_varies(name: str, backend: str, train: bool) -> None:
    plain = PROGRAMS[name]
    made = jitmagic.jit(plain, dynamic={"n": ...}, backend=backend, options={"keep": "compiled"})
    x = torch.randn(2, 4, 24, 24, dtype=torch.float64)
    taken = [n for n in VALUES if not isinstance(answer(plain, x, n, False)[0], type)]
    for n in taken:
        compare(made, plain, x, n, train)
    records = [r for r in handle_of(made).journal.records if r.result("trace") is not None]
    frames = [r for r in records if r.frame == records[0].frame]
    assert list(places_of(frames[0].result("trace")))
    assert len(frames) <= 1 + (name in SIDE_BY_SIDE)
    for n in EDGES:
        compare(made, plain, x, n, train)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_a_number_that_varies(name: str, backend: str) -> None:
    """They lie in what they are views of, whatever is written there. Negative numbers, and those
    beyond a dimension, have variants of their own.
    """
    plain = VIEWS[name]

    def doubled(x: torch.Tensor, n: int) -> torch.Tensor:
        view = plain(x, n)
        x.mul_(2)
        return view

    made = jitmagic.jit(doubled, dynamic={"n": ...}, backend=backend, options={"keep": "compiled"})
    compiled = []
    for n in (*VALUES, *EDGES, -3, -23, -24, -40, 40):
        ours = torch.arange(2 * 4 * 24 * 24.0).view(2, 4, 24, 24)
        theirs = ours.clone()
        found, wanted = answer(made, ours, n, False), answer(doubled, theirs, n, False)
        assert found[1:] == wanted[1:]
        if isinstance(wanted[0], torch.Tensor):
            torch.testing.assert_close(found[0], wanted[0])
            assert found[0].storage_offset() == wanted[0].storage_offset()
        records = [r for r in handle_of(made).journal.records if r.result("trace") is not None]
        compiled.append(sum(r.frame == records[0].frame for r in records))
    assert compiled[len(VALUES) - 1] == 1
