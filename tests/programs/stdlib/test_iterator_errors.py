"""Iterators of CPython over traced items: the texts of their errors, and iteration after one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitmagic


@pytest.mark.parametrize(
    "call",
    [
        lambda: reversed(1),
        lambda: reversed({1}),
        lambda: itertools.count("a"),
        lambda: itertools.repeat(1, "a"),
        lambda: itertools.tee([1], -1),
        lambda: itertools.islice([1], -1),
        lambda: itertools.permutations([1], -1),
        lambda: list(itertools.takewhile(None, [1])),
        lambda: sum([1], "a"),
        lambda: sum([], b""),
    ],
)
def test_errors_of_builtins_have_the_text_of_cpython(call: Callable[[], object]) -> None:
    def program(x: Tensor) -> tuple[Tensor, object]:
        try:
            call()
        except (TypeError, ValueError) as error:
            return x + 1, str(error)
        return x, None

    x = torch.ones(2)
    assert jitmagic.jit(program, backend="eager")(x)[1] == program(x)[1] is not None


def test_iterators_go_on_after_an_item_that_raises() -> None:
    def program(x: Tensor) -> list[Tensor]:
        rows = itertools.starmap(lambda a, b: x * (a // b), [(4, 2), (1, 0), (9, 3)])
        pairs = itertools.pairwise(rows)
        found = []
        while True:
            try:
                found.append(next(pairs)[1])
            except ZeroDivisionError:
                found.append(x)
            except StopIteration:
                return found

    x = torch.ones(2)
    made = jitmagic.jit(program, backend="eager")(x)
    assert [one.tolist() for one in made] == [one.tolist() for one in program(x)]
