"""Containers that a frame fills: small ones are compiled code's, large ones are left to Python."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.records import Eager

from ..counts import counts_of

LIVE: list[int] = []
TABLE: dict[int, int] = {}
MEMBERS: set[int] = set()


def extended(n):
    items = [1, 2, 3]
    for _ in range(n):
        items.extend(items)
    return items


def live(n):
    for _ in range(n):
        LIVE.extend(LIVE)
    return len(LIVE)


def added(n):
    items = [1, 2, 3]
    for _ in range(n):
        items = items + items
    return items


def tuples(n):
    items = (1, 2, 3)
    for _ in range(n):
        items = (*items, *items)
    return items


def into_a_slice(n):
    items = [1, 2, 3]
    for _ in range(n):
        items[1:2] = items
    return items


def repeated(n):
    return [[1, 2] * 2**n, (3,) * 2**n]


def nested(n):
    return [[[1] * 2**n for _ in range(4)]]


def deques(n):
    items = collections.deque([1, 2, 3])
    for _ in range(n):
        items.extend(list(items))
    return items


def limited(n):
    items = collections.deque([1, 2, 3], maxlen=7)
    for _ in range(n):
        items.extend(list(items) * 3)
        items.extendleft([4] * 5)
    return items, [0] * 2 ** (n + 1)


def table(n):
    TABLE.update(zip(range(2**n), range(2**n), strict=True))
    return dict.fromkeys(range(2**n), 1)


def members(n):
    MEMBERS.update(range(2**n))
    return set(range(2**n))


FILLED = [
    extended, live, added, tuples, into_a_slice, repeated, nested, deques, limited, table, members,
]  # fmt: skip


def story(fill: Any, tag: Any) -> list[Any]:
    LIVE[:] = [1, 2, 3]
    TABLE.clear(), MEMBERS.clear()
    tagged = tag(lambda x, n: (x + 1, fill(n)))
    answers = []
    for n in (9, 2, 9, 2):
        sums, filled = tagged(torch.ones(2), n)
        answers.append((sums.tolist(), filled, list(LIVE), dict(TABLE), set(MEMBERS)))
        LIVE[:] = LIVE[:3]
    return answers


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize("fill", FILLED, ids=lambda fill: fill.__name__)
def test_large_containers_are_left_to_python(fill):
    kept = []

    def tag(function):
        kept.append(jitmagic.jit(function, backend="eager", options={"unroll_limit": 4000}))
        return kept[0]

    assert story(fill, tag) == story(fill, lambda function: function)
    assert counts_of(kept[0]).graphs
    outcomes = [record.outcome for record in jitmagic.api.handle_of(kept[0]).journal]
    assert any(isinstance(one, Eager) and "800 items" in one.why for one in outcomes)


def test_large_container_dropped_in_the_frame_is_compiled():
    tagged = jitmagic.jit(lambda x: x + len(extended(9)), fullgraph=True, backend="eager")
    assert tagged(torch.ones(1)).item() == 1 + 3 * 2**9
