"""Kernels for all sizes: one compile, right for every size."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from jitmagic.compile import template as templates_module
from jitmagic.compile.template import Template, Templates
from jitmagic.options import Options
from jitmagic.records import Journal, Recording
from jitmagic.symbols.interval import INT64, Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.scalar import Symbol
from jitmagic.target import find_target

from .sized import symbolic_graph
from .test_lower import PROGRAMS, VALUES


def compiled(fn, make, hints):
    gm, found = symbolic_graph(fn, make, hints)
    options = Options()
    target = find_target(torch.device("cpu"), options)
    templates = Templates(gm, "program", found.symbols, target, options)
    return templates.template(hints, Recording("program", Journal()))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("hints", [(8, 12), (64, 100)], ids=["small", "big"])
def test_one_set_of_kernels_is_right_for_every_size(name, hints):
    fn, make = PROGRAMS[name]
    template, few = compiled(fn, make, hints), hints[1] <= 16
    for values in [*VALUES, (2, 1000), (1000, 3)]:
        if not template.holds(values):
            limited = name in ("sum", "mean", "softmax", "argmax")
            limited |= name in ("columns", "columns softmax", "slice") and few
            long = limited and values[1] > (16 if few else 512)
            assert long or (name == "slice" and values[1] == 2), str(template.predicates)
            continue
        inputs = make(*values)
        (made,) = template.instantiate(values)(*inputs)
        torch.testing.assert_close(made, fn(*inputs), rtol=1e-5, atol=1e-5)


def test_after_half_of_the_limit_templates_assume_nothing_for_speed(monkeypatch):
    """Else sizes that are always unlike the last ones would end op by op."""
    asked = []

    def compiled_for(graph, name, hints, *args, supposes):
        asked.append(supposes)
        [n] = hints.values()
        return Template(None, Predicates({Symbol("s0", int, Interval(n, n), "one"): n}))

    monkeypatch.setattr(templates_module, "compile_template", compiled_for)
    symbols, options = (Symbol("n", int, INT64, "n"),), Options(recompile_limit=8)
    templates = Templates(GraphModule({}, Graph()), "f", symbols, None, options)
    for n in range(3, 13):
        templates.template((n,), Recording("f", Journal()))
    assert asked == [True] * 4 + [False] * 4
