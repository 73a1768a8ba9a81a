"""Copies of a kernel's body for sizes of the first call: taken for these alone, right for all."""

from __future__ import annotations

import pytest
import torch

import jitmagic
from jitmagic.codegen import render_template
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.schedule.test_fusion import TARGET

from .sized import symbolic_graph
from .test_template import compiled

ROWS = {
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "amax": lambda x: x.amax(1),
    "columns": lambda x: (x * 2).sum(0),
}


def _text(fn, hints):
    gm, found = symbolic_graph(fn, lambda m, n: (torch.randn(m, n),), hints)
    fused = schedule(lower(gm, "program"), TARGET, Options())
    return render_template(fused, TARGET, found.symbols)[1].text


def test_short_rows_have_a_copy_of_their_own_and_long_ones_do_not():
    assert "if (s1 == 64) body(jm::Fixed<64>{}, jm::Fixed<1>{});" in _text(
        lambda x: x.softmax(1), (6, 64)
    )
    text = _text(lambda x: x.softmax(1), (6, 64))
    assert text.count("body(") == 2  # one for all other sizes, however many blocks a sum takes
    assert "jm::Fixed<9000>" not in _text(lambda x: x.softmax(1), (6, 9000))
    assert "body" not in _text(lambda x: x * 2, (6, 64))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("values", [False, True], ids=["numbers", "equal and not a number"])
def test_rows_of_any_length(name, values):
    torch.manual_seed(0)
    template = compiled(ROWS[name], lambda m, n: (torch.randn(m, n),), (6, 33))
    for shape in [(6, 33), (7, 33), (6, 34), (33, 6), (2, 1025), (70, 64), (300, 2)]:
        x = torch.randn(shape)
        if values:
            x = x.sign()
            x[1, shape[1] // 2] = x[-1, -1] = float("nan")
        (result,) = template.instantiate(shape)(x)
        torch.testing.assert_close(result, ROWS[name](x), equal_nan=True)


def test_arguments_are_called_as_the_variables_of_a_kernel():
    def f(body, single, size0, count):
        return (body * single).softmax(-1) + (size0 * count).sum(-1, keepdim=True)

    run = jitmagic.jit(f, dynamic=True, options={"on_error": "raise"})
    for shape in [(5, 33), (4, 70), (3, 2000)]:
        args = [torch.randn(shape) for _ in range(4)]
        torch.testing.assert_close(run(*args), f(*args), rtol=1e-4, atol=1e-4)
