"""One loop program is correct for all sizes, by the reference interpreter against eager."""

from __future__ import annotations

import pytest
import torch

from jitmagic.devices import find_target
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule

from .sized import EDGES, symbolic_graph

HINTS = (8, 12)
VALUES = [(a, b) for a, b in zip(EDGES, reversed(EDGES), strict=True)] + [(8, 12), (5, 5), (7, 2)]


def _two(a, b):
    torch.manual_seed(a * 1000 + b)
    return torch.randn(a, b), torch.randn(a, b)


def _row(a, b):
    torch.manual_seed(a * 1000 + b)
    return torch.randn(a, b, 6), torch.randn(b, 1)


def _grown(x, y):
    return torch.cat([x, y * 2], 1).relu()


PROGRAMS = {
    "pointwise": (lambda x, y: (x * y + 2).relu(), _two),
    "broadcast": (lambda x, y: x * y + y.t()[..., None], _row),
    "sum": (lambda x, y: (x * y + 2).relu().sum(-1), _two),
    "columns": (lambda x, y: (x * y).sum(0), _two),
    "all": (lambda x, y: (x * y).sum(), _two),
    "mean": (lambda x, y: (x - y).mean(-1, keepdim=True) + x, _two),
    "softmax": (lambda x, y: torch.softmax(x, -1) * y, _two),
    "columns softmax": (lambda x, y: torch.softmax(x, 0) * y, _two),
    "flattened": (lambda x, y: (x + y).view(-1) * 2, _row),
    "merged": (lambda x, y: (x + y).view(x.shape[0] * x.shape[1], 6).exp(), _row),
    "transposed": (lambda x, y: (x.transpose(0, 1) + 1).contiguous(), _row),
    "moved": (lambda x, y: x.transpose(0, 1).reshape(x.shape[1], -1) * 3, _row),
    "folded": (lambda x, y: x.permute(2, 0, 1).reshape(6, -1).sum(-1), _row),
    "layer norm": (lambda x, y: torch.nn.functional.layer_norm(x, (6,)) + y, _row),
    "argmax": (lambda x, y: x.argmax(-1) + y.argmin(-1), _two),
    "slice": (lambda x, y: x[:, 1:] * y[:, :-1], _two),
    "grown": (_grown, _two),
    "matmul": (lambda x, y: (x @ y.t()).relu(), _two),
}


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_is_right_for_every_size(name, fused):
    fn, make = PROGRAMS[name]
    gm, found = symbolic_graph(fn, make, HINTS)
    program = lower(gm, "program")
    verify(program)
    if fused:
        options = Options()
        program = schedule(program, find_target(torch.device("cpu"), options), options).program
        verify(program)
    # a product's kind depends on how small it is, at sizes far above these
    asks = {"slice"} | ({"matmul"} if fused else set())
    assert name in asks or not found.relations, str(found)
    for values in VALUES:
        inputs = make(*values)
        if not found.holds_for(values):
            assert values[1] == 2 and name == "slice", str(found)
            continue
        sizes = dict(zip(found.symbols, values, strict=True))
        made = run(program, inputs, sizes=sizes)
        expected = fn(*inputs)
        torch.testing.assert_close(made[0], expected, rtol=1e-5, atol=1e-5)
