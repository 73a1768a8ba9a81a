"""Bodies of symbolic kernels: one for all sizes, right for all."""

from __future__ import annotations

import re

import pytest
import torch

import jitmagic
from jitmagic.codegen import render_template
from jitmagic.codegen.cpp.expressions import CppExpressions
from jitmagic.codegen.kernel import Kernel
from jitmagic.loops.expr import Apply, Axis, AxisVar, Integer, Symbol
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.symbols.interval import Interval
from jitmagic.symbols.polynomial import product
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


def _tensor(*shape):
    return (torch.randn(shape),)


def _text(fn, hints, make=_tensor):
    gm, found = symbolic_graph(fn, make, hints)
    fused = schedule(lower(gm, "program"), TARGET, Options())
    return render_template(fused, TARGET, found.symbols)[1].text


def test_each_pass_is_written_once_however_many_blocks_a_sum_takes():
    text = _text(lambda x: x.softmax(1), (6, 900))
    assert text.count("jm::exp") == text.count("jm::in_parts") == 1
    assert re.search(r"acc\d+\.result\(s1 <= \d+\)", text)


def test_short_rows_are_one_block():
    text = _text(lambda x: x.softmax(1), (6, 64))
    assert text.count("jm::exp") == 1 and "jm::in_parts" not in text
    template = compiled(
        lambda x: x.softmax(1), lambda m, n: (torch.randn(m, n),), (6, 64), TARGET.lanes
    )
    assert template.holds((6, 512)) and template.holds((5000, 3)) and not template.holds((6, 513))


@pytest.mark.parametrize("name", ["softmax", "norm", "sum", "amax", "argmax"])
def test_rows_of_one_step_ask_for_their_length_once(name):
    fn = {**ROWS, **NORMS}[name]
    text = _text(fn, (6, 12))
    assert text.count("jm::one_step<16>(s1, ") == 1 and "jm::blocks<16>(s1" not in text
    template = compiled(fn, lambda m, n: (torch.randn(m, n),), (6, 12), TARGET.lanes)
    assert template.holds((6, 16)) and template.holds((900, 2)) and not template.holds((6, 17))
    for shape in [(6, 12), (6, 16), (5, 15), (40, 2), (3, 1 + 6)]:
        x = torch.randn(shape)
        (result,) = template.plan.at(shape)(x)
        torch.testing.assert_close(result, fn(x))


COLUMNS = {  # sums whose lanes are columns, with or without rows around them
    "columns": lambda x: x.flatten(0, 1).sum(0),
    "of_a_batch": lambda x: x.mean(1),
    "costly": lambda x: x.exp().sum(1),
    "two": lambda x: (x.sum(1), (x * x).sum(1)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_few_columns_are_one_step_that_is_written_once(name):
    def make(m, n):
        return (torch.randn(5, m, n),)

    for columns, full in [(8, 0), (16, 1)]:  # masks take time where all lanes count
        text = _text(COLUMNS[name], (6, columns), make)
        assert "jm::told_steps<16>" in text and "jm::blocks<" not in text
        assert text.count("jm::one_step<16>") == full
    template = compiled(COLUMNS[name], make, (6, 8), TARGET.lanes)
    assert template.holds((900, 16)) and not template.holds((6, 17))
    for sizes in [(6, 8), (70, 16), (3, 2)]:
        (x,) = make(*sizes)
        expected = COLUMNS[name](x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for result, wanted in zip(template.plan.at(sizes)(x), expected, strict=True):
            torch.testing.assert_close(result, wanted)


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
        quotient, mean = template.plan.at((5, columns))(x)
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
        torch.testing.assert_close(template.plan.at((7, columns))(x)[0], cell(x))


@pytest.mark.parametrize(
    ("name", "columns", "steps"),
    [("amax", 64, 4), ("argmax", 30, 2), ("mean", 64, 4), ("any", 64, 4)],
)
def test_rows_of_few_steps_are_written_beside_those_of_any(name, columns, steps):
    """Few-step rows get their own text if a step is short, whatever is computed once per row."""
    fn = {**ROWS, "mean": lambda x: x.mean(1), "any": lambda x: (x > 2).any(1)}[name]
    assert f"jm::few_steps<16, {steps}>(s1, " in _text(fn, (600, columns))
    assert "jm::few_steps" not in _text(fn, (600, 300))
    template = compiled(fn, lambda m, n: (torch.randn(m, n),), (6, columns))
    for length in range(2, 100):
        x = torch.randn(5, length)
        (made,) = template.plan.at((5, length))(x)
        torch.testing.assert_close(made, fn(x))


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
        (result,) = template.plan.at(shape)(x)
        torch.testing.assert_close(result, ROWS[name](x), equal_nan=True)


def test_arguments_named_like_kernel_variables():
    def f(some, rows, first, count):
        return (some * rows).softmax(-1) + (first * count).sum(-1, keepdim=True)

    run = jitmagic.jit(f, dynamic=True, options={"on_error": "raise"})
    for shape in [(5, 33), (4, 70), (3, 2000)]:
        args = [torch.randn(shape) for _ in range(4)]
        torch.testing.assert_close(run(*args), f(*args), rtol=1e-4, atol=1e-4)


def test_thread_arguments_are_copied_once():
    """Behind a masked store a size that was captured by reference would be read again."""
    begin = "[=%s](int64_t begin, int64_t end) JM_APART { [=%s]() JM_BODY {"
    assert begin % ("", "") in _text(lambda x: x + x[:, :1], (600, 64))
    rows = lambda m, n: (torch.randn(m, n), torch.zeros(m, dtype=torch.int64))  # noqa: E731
    assert begin % (", &bad", ", &bad") in _text(lambda x, i: x[i] + 1, (600, 64), rows)


BOUNDS = {
    "joined": lambda x: torch.cat([x * 2, x], 1),
    "up to a column": lambda x: torch.where(torch.arange(x.shape[1]) <= 5, x, -x),
    "before a column": lambda x: torch.where(7 > torch.arange(x.shape[1]), x, -x),
    "from a column on": lambda x: torch.where(torch.arange(x.shape[1]) >= 20, x, -x),
    "behind a column": lambda x: torch.where(3 < torch.arange(x.shape[1]), x, -x),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_positions_along_lanes_are_compared_by_how_many_are_below(name):
    text = _text(BOUNDS[name], (20, 60))
    assert "jm::lanes_below<" in text and "jm::iota" not in text
    template = compiled(BOUNDS[name], _tensor, (20, 60))
    for shape in [(20, 60), (2, 2), (3, 15), (70, 17), (33, 129)]:
        x = torch.randn(shape)
        (made,) = template.plan.at(shape)(x)
        assert torch.equal(made, BOUNDS[name](x))


@pytest.mark.parametrize("bound", [0, -1, 9, 2**63 - 1, -(2**63), -(2**63) + 20])
def test_bound_from_a_tensor_may_be_any_number(bound):
    def below(x, bound):
        at = torch.arange(x.shape[1])
        some = [at < bound, at >= bound, at <= bound, bound < at]
        return [torch.where(part, x, -x) for part in some]

    run = jitmagic.jit(below, dynamic=True, options={"on_error": "raise"})
    for shape in [(8, 40), (3, 17)]:
        x, told = torch.randn(shape), torch.tensor(bound)
        assert all(map(torch.equal, run(x, told), below(x, told)))


@pytest.mark.parametrize("sides", [(3, 2), (-1, 2), (0, 40), (17, -1)])
def test_padding(sides):
    def padded(x):
        return torch.nn.functional.pad(x, sides, value=7.0) + 1

    run = jitmagic.jit(padded, dynamic=True, options={"on_error": "raise"})
    for shape in [(20, 60), (3, 15), (70, 17), (33, 129)]:
        x = torch.randn(shape)
        assert torch.equal(run(x), padded(x))


@pytest.mark.parametrize("fn", [lambda x: x.roll(1, 0) + 1, lambda x: x.roll(-2, 0) * 2])
def test_rows_that_begin_elsewhere(fn):
    assert "jm::wrapped(" in _text(fn, (20, 60))
    template = compiled(fn, _tensor, (20, 60))
    for shape in [(20, 60), (2, 3), (7, 1000)]:
        x = torch.randn(shape)
        (made,) = template.plan.at(shape)(x)
        assert torch.equal(made, fn(x))


def test_coordinates_are_counted_from_row_to_row():
    def turned(x):
        return x.transpose(0, 1).contiguous() + 1

    text = _text(turned, (5, 6, 40))
    assert text.count(" / ") + text.count(" % ") == 2 and "jm::count_on(" in text
    template = compiled(turned, _tensor, (5, 6, 40))
    for shape in [(5, 6, 40), (2, 3, 4), (70, 200, 30)]:  # the last one by several threads
        x = torch.randn(shape)
        (made,) = template.plan.at(shape)(x)
        assert torch.equal(made, turned(x))


def test_sums_over_short_rows_have_as_many_of_them_in_a_block_as_fit():
    def sums(x):
        return x.sum((0, 2))

    text = _text(sums, (6, 5, 64))
    assert text.count("jm::rows_of_block(") == 1 and "jm::in_parts(size" in text
    template = compiled(sums, _tensor, (6, 5, 64))
    for shape in [(6, 5, 64), (100, 3, 16), (300, 4, 512), (40, 2, 3)]:
        x = torch.rand(shape) + 10
        (made,) = template.plan.at(shape)(x)
        torch.testing.assert_close(made.double(), sums(x.double()), rtol=2e-7, atol=0)


def test_what_depends_on_sizes_alone_is_computed_once():
    s0, s1 = (Symbol(name, int, Interval(0, 1000), name) for name in ("s0", "s1"))
    i0 = AxisVar(Axis("i0", 100))
    printer = CppExpressions(Kernel("k", (), (s0, s1), ()))
    quarter = Apply("//", (product(s0, s1), Integer(4)))
    least = Apply("min", (s0, Integer(8)))
    assert printer.index(product(quarter, i0)) in ("size0 * i0", "i0 * size0")
    assert printer.index(Apply("//", (i0, least))) == "jm::floordiv(int64_t(i0), int64_t(size1))"
    assert printer.index(quarter) == "size0"
    assert printer.hoisted == {
        "size0": "jm::floordiv(int64_t(s0 * s1), int64_t(4))",
        "size1": "jm::minimum(int64_t(s0), int64_t(8))",
    }


def test_heads_whose_width_is_what_is_left():
    def heads(x):
        return x.view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2).contiguous() + 1

    run = jitmagic.jit(heads, dynamic=True, options={"on_error": "raise"})
    for shape in [(2, 5, 64), (3, 7, 12), (30, 40, 8)]:
        x = torch.randn(shape)
        assert torch.equal(run(x), heads(x))
