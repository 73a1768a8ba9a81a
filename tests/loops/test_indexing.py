"""Run-time indexes, joins, pads, pieces replaced and elements moved, bit for bit against eager."""

from __future__ import annotations

import pytest
import torch
from recording import check, clone, nests, record

from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower

aten = torch.ops.aten
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
MIXED = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def values(dtype, *shape):
    return torch.randn(shape).to(dtype) if dtype is not torch.bool else torch.randn(shape) > 0


@pytest.mark.parametrize("dtype", MIXED)
def test_index(dtype):
    x = values(dtype, 5, 6, 7)
    i, j = torch.randint(-5, 5, (3,)), torch.randint(-6, 6, (2, 3))
    check(lambda x, i: (x[i], x[:, i], x[..., i]), x, i)
    check(lambda x, i, j: (x[i, j], x[:, i, j], x[i, :, j]), x, i, j)
    check(lambda x, i: x[i.to(torch.int32)], x, i)
    check(lambda x, i: x.t()[i] if x.dim() == 2 else x.permute(2, 1, 0)[i], x, i)


@pytest.mark.parametrize("dtype", MIXED)
def test_gather_and_select(dtype):
    x = values(dtype, 5, 6)
    check(lambda x, i: x.gather(1, i), x, torch.randint(0, 6, (5, 3)))
    check(lambda x, i: x.gather(0, i), x, torch.randint(0, 5, (2, 4)))
    check(lambda x, i: x.index_select(1, i), x, torch.randint(0, 6, (4,)))
    check(lambda x, i: x.index_select(0, i), x, torch.randint(0, 5, (4,), dtype=torch.int32))


def test_embedding():
    w = torch.randn(10, 4)
    check(lambda w, i: aten.embedding(w, i), w, torch.randint(0, 10, (2, 3)))
    check(lambda w, i: aten.embedding(w, i, 2), w, torch.tensor(3))
    check(lambda w, i: aten.embedding(w, i), w, torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("bad", [10, -1, -11])
def test_bad_indexes_raise(bad):
    x, good, i = torch.randn(10, 4), torch.tensor([1, 2]), torch.tensor([0, bad])
    for fn in (lambda x, i: aten.embedding(x, i), lambda x, i: x.index_select(0, i)):
        graph, _ = record(fn, x, good)
        with pytest.raises(IndexError):
            run(lower(graph, "bad"), [x, i])
    graph, _ = record(lambda x, i: x[i], x, good)
    if bad != -1:
        with pytest.raises(IndexError):
            run(lower(graph, "bad"), [x, i])


def test_scatter_of_one_element_per_row():
    x, i = torch.randn(5, 6), torch.randint(0, 6, (5, 1))
    check(lambda x, i: x.scatter(1, i, -1.0), x, i)
    check(lambda x, i, s: x.scatter(1, i, s), x, i, torch.randn(5, 1))
    check(
        lambda x, i: x.scatter(1, i, 2.0),
        *(x, torch.randint(0, 6, (5, 3))),
        fallbacks=["aten.scatter.value"],
    )


@pytest.mark.parametrize("dtype", MIXED)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack(dtype, dim):
    x, y = values(dtype, 3, 4), values(dtype, 3, 4)
    check(lambda x, y: (torch.cat([x, y], dim), torch.stack([x, y, x], dim)), x, y)
    check(lambda x, y: torch.cat([x[:, :2], y[:, :2], x[:, :2]], dim), x, y)
    program = check(lambda x, y: torch.cat([x.t(), (y * 2).t()], dim), x, y.float())
    assert nests(program) == 2


def test_cat_of_odd_parts():
    x, e = torch.randn(3, 4), torch.randn(0)
    check(lambda x, e: torch.cat([e, x, x[:0], x[:1]]), x, e)
    check(lambda x, y: torch.cat([x, y], 1), x, torch.randn(3, 1))
    check(lambda x, y: torch.cat([x, y]), x, torch.arange(8).view(2, 4))
    check(lambda x: torch.cat([x] * 9), x, fallbacks=["aten.cat.default"])
    check(lambda x: torch.cat([x[:0], x[:0]]), x)


def test_pad():
    x = torch.randn(3, 4)
    check(lambda x: aten.constant_pad_nd(x, [1, 2], 0.5), x)
    check(lambda x: aten.constant_pad_nd(x, [1, -1, -1, 2]), x)
    check(lambda x: aten.constant_pad_nd(x, [0, 0, 2, 0]), x)
    check(lambda x: aten.constant_pad_nd(x, [1, 1, 1, 1], 3), torch.randn(3, 1))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_slice_scatter(step):
    x = torch.randn(7, 5)
    check(lambda x: x.slice_scatter(x[1:6:step] * 2, 0, 1, 6, step), x)
    check(lambda x: x.slice_scatter(x[:, ::step] * 2, 1, 0, 9, step), x)
    g = torch.randn(7, len(range(1, 4, step)))
    check(lambda g: aten.slice_backward(g, [7, 5], 1, 1, 4, step), g)


def test_select_scatter():
    x, r = torch.randn(7, 5), torch.randn(5)
    check(lambda x, r: (x.select_scatter(r, 0, -2), x.select_scatter(x[:, 0] * 2, 1, 3)), x, r)
    check(lambda r: aten.select_backward(r, [7, 5], 0, 3), r)


def test_diagonal_scatter():
    x = torch.randn(4, 6)
    for offset in (0, 2, -1, -3):
        d = x.diagonal(offset) * 2
        check(lambda x, d: x.diagonal_scatter(d, offset), x, d)
        check(lambda d: aten.diagonal_backward(d, [4, 6], offset, 0, 1), d)
    y = torch.randn(3, 4, 5)
    check(lambda y: y.diagonal_scatter(y.diagonal(1, 2, 0) + 1, 1, 2, 0), y)


@pytest.mark.parametrize("source", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("target", [torch.bool, torch.int32, torch.float32, torch.float16])
def test_scatters_into_another_dtype(target, source):
    x, r = (torch.randn(4, 4) * 3).to(target), (torch.randn(4) * 3).to(source)
    check(lambda x, r: x.diagonal_scatter(r), x, r)
    check(lambda x, r: x.select_scatter(r, 1, 2), x, r)
    check(lambda x, r: x.slice_scatter(r[None], 0, 1, 2), x, r)


def test_triangles():
    x = torch.randn(2, 5, 4)
    check(lambda x: (x.tril(), x.triu(), x.tril(-1), x.triu(2)), x)
    check(lambda x: (x.tril(), x.triu()), torch.randn(3, 3) > 0)


def test_flips_and_rolls():
    x = torch.randn(3, 4, 5)
    check(lambda x: (x.flip(0), x.flip(1, -1), x.roll(2, 1), x.roll((1, -3), (0, 2))), x)
    check(lambda x: (x.roll(7), x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2)), x)
    check(lambda x: x.flip(0) + 1, torch.tensor(2.0).expand(1))


def test_ordered_writes_fall_back_to_aten():
    x, i = torch.randn(5, 3), torch.tensor([0, 0, 2])
    fallbacks = ["aten.index_put.default", "aten.scatter_add.default"]
    program = check(
        lambda x, i: (
            x.index_put((i,), x[:3], accumulate=True),
            x.scatter_add(0, i.view(3, 1), x[:3, :1]),
        ),
        *(x, i),
        fallbacks=fallbacks,
    )
    assert all(step.reason for step in program.steps if hasattr(step, "reason"))


@pytest.mark.parametrize("dtype", MIXED)
def test_masked_write_of_one_value(dtype):
    x = values(dtype, 4, 5, 6)
    deep, rows, columns = (torch.randn(shape) > 0 for shape in ((4, 5, 6), (4, 5), (5, 6)))
    one, row, lead = values(dtype), values(dtype, 6), values(dtype, 4, 1)
    check(lambda x, m, v: x.index_put((m,), v), x, deep, one)
    check(lambda x, m, v: x.index_put((m,), v), x, rows, one)
    check(lambda x, m, v: x.index_put((m,), v), x, rows, row)
    check(lambda x, m, v: x.index_put((m,), v), x, rows, row[None])
    check(lambda x, m, v: aten.index_put(x, [None, m], v), x, columns, lead)
    check(lambda x, m, v: aten.index_put(x, [None, None, m], v), x, columns[0], one)
    check(lambda x, m, v: x[:0].index_put((m,), v), x, deep[:0], one)


def test_masked_write_of_separate_values():
    x = torch.randn(4, 5)
    check(
        lambda x, v: x.index_put((x > x.mean(),), v),
        *(x, torch.randn(int((x > x.mean()).sum()))),
        fallbacks=["aten.index_put.default"],
    )


def test_inputs_are_not_changed():
    x, i = torch.randn(5, 3), torch.tensor([0, 0, 2])
    graph, _ = record(lambda x, i: x[i] + 1, x, i)
    before = clone(x)
    run(lower(graph, "g"), [x, i])
    assert torch.equal(x, before)


def test_shuffles():
    img = torch.randn(2, 8, 4, 6)
    check(lambda x: (aten.pixel_shuffle(x, 2), aten.pixel_unshuffle(x, 2)), img)
    check(lambda x: aten.channel_shuffle(x, 4), img)
    check(lambda x: [aten.rot90(x, k, [1, 3]) for k in range(-1, 5)], img)
    check(
        lambda x: (torch.diag_embed(x), torch.diag_embed(x, -1), torch.diag_embed(x, 2, 0, 2)), img
    )
    check(lambda x: x.trace(), torch.randn(4, 3), exact=False)
    check(lambda x: x.trace(), torch.arange(12).view(3, 4))


def test_nearest_neighbours():
    img = torch.randn(2, 3, 4, 5)
    check(lambda x: aten.upsample_nearest2d(x, [8, 15]), img)
    check(lambda x: aten.upsample_nearest2d(x, [8, 10], 2.0, 2.0), img)
    check(lambda x: aten.upsample_nearest1d(x, [10]), img[0])
    fallbacks = ["aten.upsample_nearest2d.default"]
    check(lambda x: aten.upsample_nearest2d(x, [6, 7]), img, fallbacks=fallbacks)
