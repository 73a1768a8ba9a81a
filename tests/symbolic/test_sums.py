"""Sums of varying length, over one block, several or none, are as exact as sums of known length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitmagic.codegen import render_template
from jitmagic.devices import find_target
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule

from .sized import symbolic_graph
from .test_template import compiled

# around one step of lanes, one block of 32 steps of 16 lanes or of 1, and several
LENGTHS = (2, 3, 15, 16, 17, 31, 32, 33, 64, 511, 512, 513, 1024, 2047, 2048, 2049, 30_001)


def _centred(x):
    return x - x.mean(1, keepdim=True)


SUMS = {
    "rows": lambda x: (x * 2).sum(1),
    "columns": lambda x: (x * 2).sum(0),
    "mean and square": lambda x: (x.mean(1), (x * x).sum(1)),
    "sum and greatest": lambda x: (x.sum(1), x.amax(1)),
    "softmax": lambda x: (x / 50).softmax(1),
    "norm": lambda x: _centred(x) * (_centred(x).square().mean(1, keepdim=True) + 1).rsqrt(),
}


def _checked(fn, template, x):
    assert template.holds(tuple(x.shape)), str(template.predicates)
    expected = fn(x.double())
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, exact in zip(template.plan.at(tuple(x.shape))(x), expected, strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("hints", [(6, 3), (6, 33), (64, 900)], ids=["3", "33", "900"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_exact_whatever_its_length(name, hints):
    torch.manual_seed(0)

    def template(shape):
        return compiled(SUMS[name], lambda m, n: (torch.randn(m, n),), shape, lanes=16)

    templates = [template(hints)]
    for length in LENGTHS:
        shape = (length, 6) if name == "columns" else (6, length)
        if not templates[-1].holds(shape):  # of a loop, one step, or one block: supposed to stay so
            templates.append(template(shape))
        _checked(SUMS[name], templates[-1], torch.rand(shape) + 10)
    kinds = 2 + (hints[1] <= 16) + (hints[1] < 8)
    assert len(templates) <= (1 if name == "columns" else kinds)


@pytest.mark.parametrize("length", [8, 512, 513, 3000])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf"), 3e38, -0.0], ids=str)
def test_non_finite_values_in_compensated_sums(length, odd):
    template = compiled(SUMS["rows"], lambda m, n: (torch.randn(m, n),), (6, max(length, 64)))
    x = torch.zeros(2, length)
    x[0, length // 2] = x[1, -1] = odd
    (result,) = template.plan.at((2, length))(x)
    expected = (x.double() * 2).sum(1).float()
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_columns_that_are_not_few_are_written_as_many():
    """The first call's columns say little of those of later ones."""

    def text(hints, threads):
        gm, found = symbolic_graph(SUMS["columns"], lambda m, n: (torch.randn(m, n),), hints)
        target = replace(find_target(torch.device("cpu"), Options()), threads=threads, lanes=16)
        fused = schedule(lower(gm, "program"), target, Options())
        text = render_template(fused, target, found.symbols)[1].text
        return text.partition("\n    };\n")[0]  # below it, which sizes have a copy of their own

    for threads in (1, 4):
        assert text((11, 40), threads) == text((512, 900), threads)
        assert text((11, 3), threads) != text((11, 19), threads) != text((11, 40), threads)
    assert text((4000, 64), 16) != text((11, 40), 16)  # one block each would leave 15 idle
