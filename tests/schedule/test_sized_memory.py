"""The pool of a program with Sizes: for all sizes, live temporaries do not overlap."""

from __future__ import annotations

import itertools

import pytest
import torch

from jitmagic.devices import find_target
from jitmagic.loops.lower import lower
from jitmagic.loops.sizes import with_sizes
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.schedule.memory import storage_bytes
from jitmagic.symbols.expr import Expr
from jitmagic.symbols.size import value_of
from tests.symbolic.sized import EDGES, symbolic_graph

from .test_memory import lifetimes, overlapping


def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Temporaries of n*n, n*m, m*m and n elements, some of which reuse memory of others."""
    z = torch.mm(x, y).relu()
    w = torch.mm(y, x).sin()
    total = torch.mm(z, x).cumsum(0).sum(1)
    return total + torch.mm(w, y).cumsum(1).sum(0) + torch.mm(x, w).exp().cumsum(0).sum(1)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.mm(torch.mm(x, y).tanh().cumsum(0), x).cumsum(1).relu()
    return x


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("hints", [(8, 12), (100, 3)])
@pytest.mark.parametrize("fn", [products, chain])
def test_live_temporaries_never_share_memory(fn, hints, fuse):
    gm, found = symbolic_graph(fn, lambda n, m: (torch.randn(n, m), torch.randn(m, n)), hints)
    options = Options(fuse=fuse)
    result = schedule(lower(gm, "program"), find_target(torch.device("cpu"), options), options)
    assert result.pool and len(set(map(str, result.pool.values()))) < len(result.pool)
    alive = lifetimes(result)
    for values in itertools.product(EDGES, repeat=2):
        known: dict[Expr, int] = dict(zip(found.symbols, values, strict=True))
        program = with_sizes(result.program, dict(known))
        place = {name: value_of(offset, dict(known)) for name, offset in result.pool.items()}
        size = {name: storage_bytes(program.buffers[name]) for name in place}
        end = value_of(result.pool_bytes, dict(known))
        for name, offset in place.items():
            assert offset % 64 == 0 and offset + size[name] <= end
        for one, other in itertools.combinations(place, 2):
            if overlapping(alive[one], alive[other]):
                first, second = sorted((one, other), key=lambda name: place[name])
                assert place[first] + size[first] <= place[second], (one, other, values)
