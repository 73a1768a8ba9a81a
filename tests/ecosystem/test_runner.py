"""The runner itself, with a library of its own: right, wrong, broken and raising cases are told."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from .case import Case, Tag
from .examine import Row, examine
from .systems import Captured

_CALLS: list[int] = []


def _right(tag: Tag) -> Any:
    run = tag(lambda x: (x.sin() * 2, None, 3, {"a": x.sum()}))
    return [run(torch.randn(size)) for size in (3, 4)]


def _different(tag: Tag) -> Any:
    _CALLS.append(1)
    return tag(torch.nn.Linear(2, 2))(torch.ones(2)) + len(_CALLS)


def _of_other_parts(tag: Tag) -> Any:
    _CALLS.append(1)
    return [torch.ones(1)] * len(_CALLS)


def _raising(tag: Tag) -> Any:
    if tag("not callable") != "not callable":
        raise AssertionError
    return 1


def _printing(tag: Tag) -> Any:
    @tag
    def run(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return x + 1

    return run(torch.ones(2))


def _row(program: Any) -> Row:
    return examine(Case("stub", program.__name__, program, 1e-4), "eager", rival=False)


def test_a_right_case_and_its_graphs() -> None:
    row = _row(_right)
    assert not row.wrong
    assert (row.ours.graphs, row.ours.breaks, row.ours.why) == (2, 0, ())


def test_wrong_answers_are_told() -> None:
    assert "not close" in _row(_different).wrong
    assert "other parts" in _row(_of_other_parts).wrong
    assert "TaggingError" in _row(_raising).wrong


def test_breaks_have_reasons() -> None:
    row = _row(_printing)
    assert not row.wrong
    assert row.ours.breaks == 1
    assert "print" in row.ours.why[0]


def test_a_row_is_behind_where_the_rival_captures_all() -> None:
    ours, whole, broken = Captured(2, 1, ("print",)), Captured(1), Captured(2, 1)
    assert Row("a", "b", ours=ours, theirs=whole).behind
    assert Row("a", "b", theirs=whole).behind
    assert not Row("a", "b", ours=ours, theirs=broken).behind
    assert not Row("a", "b", ours=whole, theirs=whole).behind
    row = Row("a", "b", "", ours, whole, 0.5)
    assert Row.read(json.loads(json.dumps(dataclasses.asdict(row)))) == row
