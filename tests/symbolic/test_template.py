"""Kernels for all sizes: one compile, right for every size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

import jitmagic
from jitmagic.api import handle_of
from jitmagic.compile import template as templates_module
from jitmagic.compile.template import Template, Templates
from jitmagic.devices import find_target
from jitmagic.options import Options
from jitmagic.records import Journal, Recording
from jitmagic.symbols.interval import INT64, Interval
from jitmagic.symbols.predicates import Predicates
from jitmagic.symbols.symbolic_numbers import Symbol

from .sized import symbolic_graph
from .test_data_sizes import COLUMNS, OF_NUMBERS, ROWS
from .test_lower import PROGRAMS, VALUES


def compiled(fn, make, hints, lanes=0):
    """`lanes`: of a float32 vector, by default as many as this machine has."""
    gm, found = symbolic_graph(fn, make, hints)
    options = Options()
    target = find_target(torch.device("cpu"), options)
    if lanes:
        target = replace(target, lanes=lanes)
    templates = Templates(gm, "program", found, target, options)
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
        (made,) = template.plan.at(values)(*inputs)
        torch.testing.assert_close(made, fn(*inputs), rtol=1e-5, atol=1e-5)


def test_after_half_of_the_limit_templates_assume_nothing_for_speed(monkeypatch):
    """Else sizes that are always unlike the last ones would end op by op."""
    asked = []

    def compiled_for(graph, name, within, values, *args, excludes_sizes, training):
        asked.append(excludes_sizes)
        [n] = values
        return Template(None, Predicates({Symbol("s0", int, Interval(n, n), "one"): n}))

    monkeypatch.setattr(templates_module, "compile_template", compiled_for)
    within, options = Predicates({Symbol("n", int, INT64, "n"): 3}), Options(recompile_limit=8)
    templates = Templates(GraphModule({}, Graph()), "f", within, None, options)
    for n in range(3, 13):
        templates.template((n,), Recording("f", Journal()))
    assert asked == [True] * 4 + [False] * 4


def rejoined(x: torch.Tensor, n: torch.Tensor) -> Any:
    a, b, c, d = x.split(n.tolist())
    return torch.cat([d.cos(), b.sin(), a, c]) + x


def sliced(x: torch.Tensor, n: torch.Tensor) -> Any:
    first, last = n[:2].tolist()
    return x.sin()[first:last].sum(1), x[:last].exp()


@pytest.mark.parametrize("program", [*OF_NUMBERS, rejoined, sliced], ids=lambda fn: fn.__name__)
def test_the_verifier_accepts_templates_of_data_sizes(program: Callable[..., Any]) -> None:
    """A template knows the joint graph's relations: a slice ends within the sliced tensor."""
    compiled = jitmagic.jit(program, fullgraph=True, options={"verify": True})
    for numbers in ([2, 5, 3, 2], [3, 4, 3, 2], [2, 3, 5, 2], [3, 6, 3, 0]):
        x, n = torch.randn(ROWS, COLUMNS), torch.tensor(numbers)
        torch.testing.assert_close(compiled(x, n), program(x, n))
    records = handle_of(compiled).journal.records
    kept = [str(s.kept) for r in records for s in r.stages if s.stage.endswith("for all sizes")]
    assert kept and not any(text.startswith("only for") for text in kept), kept
