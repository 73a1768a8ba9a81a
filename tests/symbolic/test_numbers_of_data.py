"""Numbers read from a tensor at a graph break vary from the first call on with dynamic=True: the
resume function is compiled once for all numbers that take the same path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of


def item(x: Tensor) -> Any:
    total = (x * 2).sum().item()
    if total > 0:
        return x + total, total
    return x, -total


def unnamed(x: Tensor) -> Tensor:
    return x.cos() if (x * 2).sum().item() > 0.5 else x.sin()


def as_float(x: Tensor) -> Any:
    total = float(x.sum())
    return (x / total if total > 1e-3 else x), total


def as_int(x: Tensor) -> Any:
    count = int(x.sum())
    return (x * count if count > 2 else x), count, x.new_zeros(count)


def _size_of(x: Tensor) -> float:
    total = x.sum()
    return 0.5 if total < 0.5 else total.item() * 2


def of_a_callee(x: Tensor) -> Any:
    size = _size_of(x)
    return (x + size if size > 0.25 else x - size), size


def until_it_rests(x: Tensor) -> Any:
    for step in range(9):
        y = (x + x.mean()) / 2
        change = (y - x).norm()
        x = y
        if change.item() < 1e-2:
            break
    return x, step


PROGRAMS: list[Callable[..., Any]] = [item, unnamed, as_float, as_int, of_a_callee]
FACTORS = (3.0, 5.0, 4.0, 9.0, 7.0)


def compiles(program: Callable[..., Any], dynamic: bool | None) -> Counter[object]:
    """Return the compiles per frame, after comparing every call with eager."""
    compiled = jitmagic.jit(program, backend="eager", dynamic=dynamic, options={"keep": "compiled"})
    for call, factor in enumerate(FACTORS):
        x = torch.linspace(0.1, 1.0, 4 + call) * factor
        expected, actual = program(x.clone()), compiled(x.clone())
        torch.testing.assert_close(actual, expected)
    records = handle_of(compiled).journal.records
    assert {str(record.outcome) for record in records} == {"compiled"}
    return Counter(record.frame for record in records)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_resume_function_after_a_read_number_is_compiled_once(
    program: Callable[..., Any],
) -> None:
    counts = compiles(program, True)
    assert set(counts.values()) == {1}


def test_each_exit_of_a_data_dependent_loop_is_compiled_once() -> None:
    """To go on and to end it are two ways."""
    counts = compiles(until_it_rests, True)
    assert max(counts.values()) == 2
    assert list(counts.values()).count(2) == 1


def test_number_becomes_dynamic_after_a_change() -> None:
    """A read number may be a setting: the first variant is for its value."""
    counts = compiles(unnamed, None)
    assert max(counts.values()) == 2


def bool_of_the_same_int(x: Tensor) -> Any:
    count = int(x.sum())
    flag = count > 0
    return x + 1, flag == count, count == flag, flag != count, count in [flag]


def two_bools(x: Tensor) -> Any:
    return x + 1, (x.sum().item() > 1) == (x.max().item() > 2)


def bool_and_a_number_of_numpy(x: Tensor) -> Any:
    flag = x.sum().item() > 1
    return x + 1, flag == np.float64(1.0), np.int64(1) == flag


@pytest.mark.parametrize("program", [bool_of_the_same_int, two_bools, bool_and_a_number_of_numpy])
def test_numbers_of_two_kinds_are_equal_by_value(program: Callable[..., Any]) -> None:
    compiled = jitmagic.jit(program, backend="eager", dynamic=True)
    for values in ([1.0, 0.0], [1.5, 0.25], [3.0, 4.0], [-2.0, 1.0]):
        x = torch.tensor(values)
        assert compiled(x)[1:] == program(x)[1:]


def test_bool_read_from_a_tensor_has_two_variants() -> None:
    def chosen(x: Tensor) -> Tensor:
        flag = (x.sum() > 12).item()
        return x.cos() if flag else x.sin()

    assert max(compiles(chosen, True).values()) == 2
