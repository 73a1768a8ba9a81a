"""Transposed copies of varying sizes are tiled, with full tiles and remainders at each edge."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from jitmagic.codegen import render_template
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.schedule.test_fusion import TARGET

from .sized import symbolic_graph
from .test_template import compiled

SIZES = (2, 3, 15, 16, 17, 32, 33, 100)
TURNED = {
    "plain": (lambda x: (x.t() + 1).contiguous(), lambda m, n: (torch.randn(m, n),)),
    "two sides": (
        lambda x, y: (x.t() * y).contiguous(),
        lambda m, n: (torch.randn(m, n), torch.randn(n, m)),
    ),
    "heads": (
        lambda x: (x.permute(0, 2, 1) * 2).contiguous(),
        lambda m, n: (torch.randn(3, m, n),),
    ),
    "known width": (lambda x: (x.t() + 1).contiguous(), lambda m, n: (torch.randn(m, 24),)),
    "wide elements": (
        lambda x: (x.t() * 2).contiguous(),
        lambda m, n: (torch.randn(m, n, dtype=torch.float64),),
    ),
    "bool": (lambda x: x.t().logical_not().contiguous(), lambda m, n: (torch.randn(m, n) > 0,)),
}


@pytest.mark.parametrize("hints", [(5, 6), (100, 64)], ids=["small", "big"])
@pytest.mark.parametrize("name", TURNED)
def test_every_edge_of_the_tiles_is_eager_s(name, hints):
    fn, make = TURNED[name]
    template = compiled(fn, make, hints)
    for values in itertools.product(SIZES, SIZES):
        assert template.holds(values), str(template.predicates)
        inputs = make(*values)
        (result,) = template.plan.at(values)(*inputs)
        torch.testing.assert_close(result, fn(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["plain", "two sides", "heads", "known width"])
def test_kernels_read_in_tiles(name, threads):
    fn, make = TURNED[name]
    gm, found = symbolic_graph(fn, make, (100, 64))
    target = replace(TARGET, threads=threads)
    _, source = render_template(
        schedule(lower(gm, "program"), target, Options()), target, found.symbols
    )
    assert source is not None
    assert "jm::load_tile(" in source.text
