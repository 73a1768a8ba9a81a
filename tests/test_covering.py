"""Rows of a covering: every pair of values, and no more rows than two axes have by and large."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from .covering import covering

SIZES = [*product((1, 2, 3, 5), repeat=3), *product((1, 3, 4, 12), repeat=4), (9, 5, 2, 2, 2)]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_each_pair_of_values_occurs(count: int) -> None:
    for sizes in (sizes for sizes in SIZES if len(sizes) == count):
        rows = covering(*map(range, sizes), every=False)
        assert rows == sorted(set(rows))
        for a, b in combinations(range(count), 2):
            assert len({(row[a], row[b]) for row in rows}) == sizes[a] * sizes[b], sizes


def test_shorter_axes_take_turns() -> None:
    assert len(covering(range(30), range(3), range(2), range(2), every=False)) == 90
    assert covering("ab", "cd", "ef", every=False) == [(*"ace",), (*"adf",), (*"bcf",), (*"bde",)]


def test_all_of_them_where_that_is_asked_for_or_there_are_two() -> None:
    assert len(covering("ab", "cd", "ef", every=True)) == 8
    assert covering("ab", "cd", every=False) == [(*"ac",), (*"ad",), (*"bc",), (*"bd",)]
