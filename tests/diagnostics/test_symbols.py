"""`explain(f)(x).symbols`: the sizes and numbers that change from call to call, as data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.diagnostics.explanation.explain import explanation_of


def test_symbols_have_an_origin_a_range_and_the_lines_that_narrowed_them() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] > 8:
            return x @ y + len(f"{y.shape[1]}")
        return x

    jitmagic.mark_dynamic(x := torch.randn(16, 5), 0, max=100)
    jitmagic.mark_dynamic(y := torch.randn(5, 7), 1)
    size, constant = sorted(jitmagic.explain(program)(x, y).symbols, key=lambda s: s.origin)
    assert (size.origin, size.kind, size.range[:2]) == ("x.shape[0]", "size", (9, 100))
    assert [(text, line.text) for text, line in size.conditions] == [
        ("x.shape[0] >= 9", "if x.shape[0] > 8:")
    ]
    assert (constant.origin, constant.range) == ("y.shape[1]", None)
    assert "len(f" in constant.where.text
    assert constant.specialized


def test_a_size_that_shares_its_symbol_says_with_which() -> None:
    find = jitmagic.explain(lambda x, y: x + y, dynamic=True)
    first, second = find(torch.ones(5), torch.ones(5)).symbols
    assert (first.origin, second.origin) == ("x.shape[0]", "y.shape[0]")
    assert first.range == second.range
    assert "y.shape[0] == x.shape[0]" in [text for text, _ in second.conditions]


@pytest.mark.parametrize("number", [3, 0.5], ids=type)
def test_a_number_that_varies_is_a_symbol(number: float) -> None:
    @jitmagic.jit
    def program(x: Tensor, n: Any) -> Tensor:
        return x * n

    for step in range(3):
        program(torch.ones(3), number + step)
    (symbol,) = explanation_of(program).symbols
    assert (symbol.origin, symbol.kind) == ("n", type(number).__name__)
    assert symbol.range.has(number)


def test_what_a_number_was_compiled_for_is_told_with_its_line() -> None:
    """The number of parts is decided during the trace."""

    @jitmagic.jit
    def program(x: Tensor, n: int) -> list[Tensor]:
        return [part * 2 for part in x.split(n)]

    for n in (2, 3, 4):
        program(torch.ones(12), n)
    *_, symbol = explanation_of(program).symbols
    conditions = {text: line.text for text, line in symbol.conditions}
    assert symbol.origin == "n"
    assert "x.split(n)" in conditions["((n + 11) // n) == 3"]


def test_explain_names_the_size_and_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0] * 2  # here
        return y.sum()

    (found,) = jitmagic.explain(program)(torch.randn(4, 5)).symbols
    assert (found.origin, found.kind, found.range.low, found.range.high) == ("u0", "size", 0, 20)
    assert "x[x > 0]" in found.where.text
    told = jitmagic.explain(program)(torch.randn(4, 5)).full()
    assert "u0: a data-dependent size, 0 to 20" in told
