"""Programs of products give the bits of the C++ kernels that take their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from jitmagic.codegen import render
from jitmagic.devices import find_target
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.schedule import schedule
from tests.loops.recording import record

from . import built
from .test_blocks import kernels

CPP = Options(cpu_tier="cpp")
TARGET = find_target(torch.device("cpu"), CPP)


def _chain(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return F.gelu(F.linear(F.relu(F.linear(x, w, b)), v)) + 1


def _two_results(x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = F.linear(x, w, b)
    return z.tanh() + y, (z > 0).double()


def _gradient(x: Tensor, g: Tensor) -> Tensor:
    return g.t() @ x


def _added(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return y + x @ w


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(40, 24), (33, 24), (33,)]),
    "no epilogue": (torch.mm, [(40, 24), (24, 18)]),
    "few rows": (F.linear, [(2, 50), (33, 50), (33,)]),
    "gradient": (_gradient, [(40, 24), (40, 17)]),
    "added": (_added, [(19, 24), (24, 30), (19, 30)]),
    "two results": (_two_results, [(21, 30), (17, 30), (17,), (21, 17)]),
    "chain": (_chain, [(45, 30), (22, 30), (22,), (9, 22)]),
    "chain of few rows": (_chain, [(3, 30), (22, 30), (22,), (9, 22)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_the_kernel(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    for x in inputs:
        x.flatten()[:2] = torch.tensor([0.0, -0.0][: min(x.numel(), 2)])
    graph, expected = record(fn, *[x.clone() for x in inputs])
    scheduled = schedule(lower(graph, "test"), TARGET, CPP)
    plan, source = render(scheduled, TARGET, is_interpreted=lambda source: True)
    assert source is not None
    programs = source.meanwhile
    assert "product.f32" in programs
    ours = PlanRunner(plan, kernels(source.__class__("blocks", programs, {}), TARGET))
    theirs = PlanRunner(plan, built.kernels(source, TARGET))
    for a, b, c in zip(
        ours(*[x.clone() for x in inputs]),
        theirs(*[x.clone() for x in inputs]),
        expected,
        strict=True,
    ):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
