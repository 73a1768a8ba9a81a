"""Bodies of symbolic kernels: one for all sizes, right for all."""

from __future__ import annotations

import re

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
    "column deviations": lambda x: (x.double() - x.double().mean(0)).sum(0).cos(),
    "turned": lambda x: x.t().contiguous() * 2,
}

NORMS = {
    "softmax": lambda x: x.softmax(1),
    "norm": lambda x: x - x.mean(1, keepdim=True),
    "sum": lambda x: (x * x).sum(1),
}


def _text(fn, hints):
    gm, found = symbolic_graph(fn, lambda m, n: (torch.randn(m, n),), hints)
    fused = schedule(lower(gm, "program"), TARGET, Options())
    return render_template(fused, TARGET, found.symbols)[1].text


def test_each_pass_is_written_once_however_many_blocks_a_sum_takes():
    text = _text(lambda x: x.softmax(1), (6, 900))
    assert text.count("jm::exp") == text.count("jm::in_parts") == 1
    assert re.search(r"acc\d+\.result\(s1 <= \d+\)", text)


def test_short_rows_are_one_block():
    text = _text(lambda x: x.softmax(1), (6, 64))
    assert text.count("jm::exp") == 1 and "jm::in_parts" not in text
    template = compiled(lambda x: x.softmax(1), lambda m, n: (torch.randn(m, n),), (6, 64))
    assert template.holds((6, 512)) and template.holds((5000, 3)) and not template.holds((6, 513))


@pytest.mark.parametrize("name", ["softmax", "norm", "sum", "amax", "argmax"])
def test_rows_of_one_step_ask_for_their_length_once(name):
    fn = {**ROWS, **NORMS}[name]
    text = _text(fn, (6, 12))
    assert text.count("jm::one_step<16>(s1, ") == 1 and "jm::blocks<16>(0, s1" not in text
    template = compiled(fn, lambda m, n: (torch.randn(m, n),), (6, 12))
    assert template.holds((6, 16)) and template.holds((900, 2)) and not template.holds((6, 17))
    for shape in [(6, 12), (6, 16), (5, 15), (40, 2), (3, 1 + 6)]:
        x = torch.randn(shape)
        (result,) = template.instantiate(shape)(x)
        torch.testing.assert_close(result, fn(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_of_elements_divides_as_a_constant_does(dtype):
    """By the product with its reciprocal only where that is exact."""
    template = compiled(
        lambda x: (x / x.shape[1], x.mean(1)),
        lambda m, n: (torch.randn(m, n, dtype=dtype),),
        (6, 33),
    )
    tiny = torch.finfo(dtype).tiny
    for columns in (2, 3, 16, 49, 64, 100, 256):
        x = torch.randn(5, columns, dtype=dtype)
        x[0, 0], x[1, 1] = float("inf"), float("nan")
        x[2], x[3] = tiny, 1.0
        quotient, mean = template.instantiate((5, columns))(x)
        torch.testing.assert_close(quotient, x / columns, rtol=0, atol=0, equal_nan=True)
        assert mean[3] == 1 and torch.equal(mean[2], x[2].mean())


BESIDE = {  # of rows that are read from elsewhere: none is flattened with its neighbours
    "flipped": lambda x: x.flip(1) + 1,
    "rows": lambda x: x[torch.arange(x.shape[0]).flip(0)] * 2,
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2)) + 1,
    "joined": lambda x: torch.cat([x * 2, x], 1),
}


@pytest.mark.parametrize("name", BESIDE)
def test_pointwise_rows_of_one_step_ask_for_their_length_once(name):
    text = _text(BESIDE[name], (600, 6))
    assert len(re.findall(r"jm::one_step<\d+>\(s1", text)) == 1 and "jm::blocks<" not in text
    assert "jm::one_step" not in _text(BESIDE[name], (600, 64))


def test_a_long_step_with_room_for_all_of_a_row_is_written_once():
    def cell(x):
        gate, new, out, old = x.sigmoid(), x.flip(1).tanh(), x.cos(), x.sin()
        return (gate * new + (1 - gate) * old).tanh() * out.sigmoid()

    text = _text(cell, (600, 6))
    assert re.search(r"const int64_t n\d+ = s1;", text) and "jm::told_steps<" in text
    assert "jm::one_step" not in text and "jm::blocks<" not in text
    template = compiled(cell, lambda m, n: (torch.randn(m, n),), (600, 6))
    for columns in (2, 5, 6):
        x = torch.randn(7, columns)
        assert template.holds((7, columns))
        torch.testing.assert_close(template.instantiate((7, columns))(x)[0], cell(x))


@pytest.mark.parametrize(("name", "columns", "steps"), [("amax", 64, 4), ("argmax", 30, 2)])
def test_rows_of_few_steps_are_written_beside_those_of_any(name, columns, steps):
    fn = ROWS[name]
    assert f"jm::few_steps<16, {steps}>(s1, " in _text(fn, (600, columns))
    assert "jm::few_steps" not in _text(fn, (600, 300))
    template = compiled(fn, lambda m, n: (torch.randn(m, n),), (6, columns))
    for length in range(2, 100):
        x = torch.randn(5, length)
        (made,) = template.instantiate((5, length))(x)
        assert torch.equal(made, fn(x))


@pytest.mark.parametrize("fn", [lambda x: x.softmax(1), lambda x: x.double().std(1)])
def test_more_than_a_few_values_a_step_are_written_for_any_length_alone(fn):
    assert "jm::few_steps" not in _text(fn, (600, 30))


def test_tiles_are_loaded_and_turned_once_whole_or_not():
    text = _text(lambda x: x.t().contiguous() * 2, (6, 64))
    load = text.index("jm::load_tile")
    assert text.count("jm::load_tile") == 1
    stores = re.search(
        r"jm::tile_of<float, \d+>\(some, .*\n *jm::tile_rows<\d+>\(first, rows", text
    )
    assert stores is not None and stores.start() > load


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
    def f(some, rows, first, count):
        return (some * rows).softmax(-1) + (first * count).sum(-1, keepdim=True)

    run = jitmagic.jit(f, dynamic=True, options={"on_error": "raise"})
    for shape in [(5, 33), (4, 70), (3, 2000)]:
        args = [torch.randn(shape) for _ in range(4)]
        torch.testing.assert_close(run(*args), f(*args), rtol=1e-4, atol=1e-4)
