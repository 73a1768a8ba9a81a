"""Matrix products of varying sizes: jitmagic's kernels are chosen correctly at each limit."""

from __future__ import annotations

import itertools
import re

import pytest
import torch

from jitmagic.codegen import render_template
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.schedule.products import SMALL
from tests.schedule.test_fusion import TARGET

from .sized import symbolic_graph
from .test_template import compiled

CALL = re.compile(r"jm::(?:gemm|chain)\w*[<(]")
aten = torch.ops.aten
SIZES = (2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1000)


def _linear(x, w, b):
    return aten.addmm(b, x, w.t()).relu()


def _three_layers(x, *weights):
    for weight in weights:
        x = aten.mm(x, weight).tanh()
    return x


def _weights():
    return [torch.randn(a, b) / 8 for a, b in ((390, 41), (41, 390), (390, 41))]


PROGRAMS = {
    "linear": (_linear, lambda n, k: (torch.randn(n, 24), torch.randn(40, 24), torch.randn(40))),
    "plain": (lambda x, w: aten.mm(x, w), lambda n, k: (torch.randn(n, 24), torch.randn(24, 5))),
    "layers": (
        _three_layers,
        lambda n, k: (torch.randn(n, 20), *(torch.randn(20, 20) / 4 for _ in range(3))),
    ),
    "wide layers": (  # few rows of them are shared out to threads
        _three_layers,
        lambda n, k: (torch.randn(n, 41), *(w.t().contiguous() for w in _weights())),
    ),
    "turned layers": (  # as nn.Linear has them: few rows are dot products
        lambda x, *weights: _three_layers(x, *(weight.t() for weight in weights)),
        lambda n, k: (torch.randn(n, 41), *_weights()),
    ),
    # a backward's: the sum runs over the batch, and either operand may be turned
    "weight gradient": (
        lambda dy, x: aten.mm(dy.t(), x) * 0.5,
        lambda n, k: (torch.randn(n, 12), torch.randn(n, 33)),
    ),
    "turned result": (
        lambda x, w: aten.mm(w, x.t()) + 1,
        lambda n, k: (torch.randn(n, 24), torch.randn(7, 24)),
    ),
    "distance between rows": (
        lambda x, w: aten.mm(x.t(), w),
        lambda n, k: (torch.randn(24, n), torch.randn(24, 9)),
    ),
    "every size": (
        lambda x, y: (aten.mm(x, y) * 2, aten.mm(y, x).relu()),
        lambda n, k: (torch.randn(n, k), torch.randn(k, n)),
    ),
    "part of rows": (
        lambda x, w: aten.mm(x[:, 3:27], w) + 1,
        lambda n, k: (torch.randn(n, 30), torch.randn(24, 16)),
    ),
}


def _results(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("hints", [(5, 6), (64, 50)], ids=["few", "many"])
def test_results_are_eager_results_at_every_size(name, hints):
    fn, make = PROGRAMS[name]
    template = compiled(fn, make, hints)
    assert template.holds(hints)
    served = 0
    for values in [*itertools.product(SIZES, (2, 3, 17, 64)), hints]:
        if not template.holds(values):
            continue
        served += 1
        inputs = make(*values)
        expected = _results(fn(*(x.double() for x in inputs)))
        for result, exact in zip(template.plan.at(values)(*inputs), expected, strict=True):
            torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-4)
    assert served >= len(SIZES) * 4 - 1, str(template.predicates)


def _text_and_predicates(name, hints):
    fn, make = PROGRAMS[name]
    gm, found = symbolic_graph(fn, make, hints)
    fused = schedule(lower(gm, "program"), TARGET, Options())
    _, source = render_template(fused, TARGET, found.symbols)
    return "" if source is None else source.text, found


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_are_kernels_whose_sizes_are_arguments(name):
    text, found = _text_and_predicates(name, (64, 50))
    assert CALL.search(text)
    assert "s0" in text
    assert found.holds_for((64, 50)) and found.holds_for((48, 51))


@pytest.mark.parametrize("name", ["layers", "turned layers"])
def test_layers_are_a_chain(name):
    text, _ = _text_and_predicates(name, (64, 50))
    assert CALL.findall(text) == ["jm::chain_rows("]
    assert "jm::chain_rows(\n        s0," in text


def test_the_limit_of_small_products_divides_the_sizes():
    limit = SMALL // (24 * 40)
    text, small = _text_and_predicates("linear", (limit, 2))
    assert CALL.search(text)
    assert small.holds_for((limit - 1, 2)) and not small.holds_for((limit + 1, 2))
    text, large = _text_and_predicates("linear", (limit + 1, 2))
    assert not CALL.search(text)
    assert large.holds_for((limit + 2, 2)) and not large.holds_for((limit, 2))


def test_products_add_no_guard_on_the_order_of_sizes():
    _, found = _text_and_predicates("every size", (64, 50))
    assert found.holds_for((50, 64)) and found.holds_for((51, 51))


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_rows_and_many_have_one_text(name):
    """Both in one kernel: nothing that is asked of the sizes tells 2 rows from 1000."""
    for hints in ((3, 50), (64, 50)):
        _, found = _text_and_predicates(name, hints)
        assert found.holds_for((2, 50))
        assert found.holds_for((500, 50))
