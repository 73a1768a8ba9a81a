"""Products become a chain, or a sentence says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.schedule.products import products_of
from tests.schedule.test_fusion import TARGET, aten, lowered, nests


def layers(x, *weights):
    for weight in weights:
        x = torch.mm(x, weight).relu()
    return x


def sizes(rows: int, *widths: int) -> list[torch.Tensor]:
    made = [torch.randn(rows, widths[0])]
    return made + [torch.randn(a, b) for a, b in zip(widths, widths[1:])]


def refusals(fn, inputs, target=TARGET) -> set[str]:
    found = schedule(lowered(fn, *inputs), target, Options())
    return {d.reason for d in found.decisions if not d.fused}


@pytest.mark.parametrize("count", [2, 3, 6])
def test_layers_are_one_nest(count):
    result = schedule(lowered(layers, *sizes(32, *[24] * (count + 1))), TARGET, Options())
    (nest,) = nests(result)
    products = products_of(nest.outer, [store.value for store in nest.stores])
    assert len(products) == count
    assert all(before.n == after.k for before, after in zip(products, products[1:]))
    assert {product.m for product in products} == {nest.outer[0]}
    assert len({product.k for product in products}) == count, (
        "loops inside each other share an axis"
    )


def counted(x, *weights):
    return layers(x, *weights).sqrt().to(torch.int32)


def test_the_last_product_must_be_stored_contiguously():
    inputs = sizes(16, 16, 16, 8)
    assert "its result is not stored in float32, row by row" in refusals(counted, inputs)


@pytest.mark.parametrize(
    ("rows", "threads", "joined"),
    [(32, 2, True), (64, 2, True), (20, 2, True), (40, 2, False), (32, 4, False), (96, 4, False),
     (128, 4, True), (40, 1, True)],
)  # fmt: skip
def test_rows_have_to_keep_all_threads_busy(rows, threads, joined):
    target = replace(TARGET, threads=threads)
    inputs = sizes(rows, 256, 256, 128)
    result = schedule(lowered(layers, *inputs), target, Options())
    assert len(nests(result)) == (1 if joined else 2)
    uneven = f"{rows} rows do not divide evenly over {threads} threads"
    assert (uneven in refusals(layers, inputs, target)) is not joined


def test_small_chains_run_on_one_thread():
    target = replace(TARGET, threads=16)
    assert len(nests(schedule(lowered(layers, *sizes(40, 20, 20, 20)), target, Options()))) == 1


def test_too_few_rows():
    assert "4 rows do not fill a register of 16" in refusals(layers, sizes(4, 20, 20, 20))


def test_intermediate_results_with_other_readers_are_not_chained():
    def kept(x, w1, w2):
        h = torch.mm(x, w1)
        return torch.mm(h, w2), h

    def twice(x, w1, w2):
        h = torch.mm(x, w1)
        return torch.mm(h, w2) + h

    def by_row(x, w1, w2):
        return torch.mm(torch.mm(x, w1) * x[:, :1], w2)

    inputs = sizes(20, 20, 20, 20)
    assert "its result is needed in memory" in refusals(kept, inputs)
    assert "its result has other readers" in refusals(twice, inputs)
    assert "the operations between the products depend on the row" in refusals(by_row, inputs)


def test_memory_that_is_overwritten_later_is_not_read_late():
    def step(x, w1, w2):
        h = torch.mm(x, w1)
        y = torch.mm(h, w2)
        return aten.copy_(w1, w1 + 1.0), y

    assert "its operands are overwritten later" in refusals(step, sizes(20, 20, 20, 20))
