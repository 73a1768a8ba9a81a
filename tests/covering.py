"""Fewer than all combinations of a family's axes: each pair of values occurs, by a fixed rule.

In: the values of each axis. Out: a family with some of their rows. The two longest axes are
combined in full (as a rule programs and backends), and the values of the others take turns. What
three values do together is left to the full product: JITMAGIC_EVERY=1, before a release.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from itertools import chain, combinations, product
from typing import Any

import pytest

__all__ = ["EVERY", "covered", "covering"]

EVERY = os.environ.get("JITMAGIC_EVERY", "") not in ("", "0")
Row = tuple[int, ...]


def covered(**axes: Collection[Any]) -> pytest.MarkDecorator:
    """The test is run for the rows of a covering; three axes or more, by the arguments' names."""
    rows = covering(*axes.values())
    ids = ["-".join(map(_shown, axes, row)) for row in rows]
    return pytest.mark.parametrize(tuple(axes), rows, ids=ids)


def _shown(axis: str, value: Any) -> str:
    if isinstance(value, bool):
        return axis if value else f"no {axis}"
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(getattr(value, "__name__", value))


def covering(*axes: Collection[Any], every: bool = EVERY) -> list[tuple[Any, ...]]:
    """Rows with a value of each axis, in the order of the full product."""
    if every or len(axes) < 3:
        return list(product(*axes))
    sizes = [len(axis) for axis in axes]
    chosen, seen = [], set[Any]()
    for row in chain(_in_turns(sizes), product(*map(range, sizes))):
        pairs = set(combinations(enumerate(row), 2))
        if not pairs <= seen:
            seen |= pairs
            chosen.append(row)
    values = [list(axis) for axis in axes]
    return [tuple(map(list.__getitem__, values, row)) for row in sorted(chosen)]


def _in_turns(sizes: list[int]) -> Iterator[Row]:
    """The two longest axes in full. The others are digits of the place along the longest, moved on
    by the place along the second: they differ along both, and from one another.
    """
    longest, second, *others = sorted(range(len(sizes)), key=lambda axis: -sizes[axis])
    for i, j in product(range(sizes[longest]), range(sizes[second])):
        row = {longest: i, second: j}
        left = i
        for axis in others:
            left, digit = divmod(left, sizes[axis])
            row[axis] = (digit + j) % sizes[axis]
        yield tuple(row[axis] for axis in range(len(sizes)))
