"""Kernels for all sizes: one compile, right for every size."""

from __future__ import annotations

import pytest
import torch

from jitmagic.options import Options
from jitmagic.records import Journal, Recording
from jitmagic.target import find_target
from jitmagic.template import compile_template

from .sized import symbolic_graph
from .test_lower import PROGRAMS, VALUES


def compiled(fn, make, hints):
    gm, found = symbolic_graph(fn, make, hints)
    options = Options()
    target = find_target(torch.device("cpu"), options)
    hints = dict(zip(found.symbols, hints, strict=True))
    record = Recording("program", Journal())
    return compile_template(gm, "program", hints, target, options, record)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("hints", [(8, 12), (64, 100)], ids=["small", "big"])
def test_one_set_of_kernels_is_right_for_every_size(name, hints):
    fn, make = PROGRAMS[name]
    template = compiled(fn, make, hints)
    for values in [*VALUES, (2, 1000), (1000, 3)]:
        if not template.holds(values):
            assert name == "slice" and values[1] == 2, str(template.predicates)
            continue
        inputs = make(*values)
        (made,) = template.instantiate(values)(*inputs)
        torch.testing.assert_close(made, fn(*inputs), rtol=1e-5, atol=1e-5)
