"""A part of `python -m tests.operators --func`: operators under vmap, grad and jvp."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's database of samples imports it")

from .transformed import POSITIONS, TRANSFORMS, count_trial  # noqa: E402
from .trials import OPERATORS, Trial, name_of, trials  # noqa: E402

_EVERY = 29  # operators to the next one that is tried
_CHOSEN = OPERATORS[::_EVERY]
_MENDED = ("aminmax", "linalg.qr", "median", "transpose", "sort")  # and what they return


def _first(name: str) -> Trial | None:
    (op, *_) = [op for op in OPERATORS if name_of(op) == name]
    return next(trials(op, "call", torch.float32, 1), None)


def _told(name: str, transform: str, position: str) -> str | None:
    trial = _first(name)
    return "refused by eager" if trial is None else count_trial(trial, transform, position, "aten")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", map(name_of, _CHOSEN))
def test_nothing_is_wrong(name: str) -> None:
    told = {(t, p): _told(name, t, p) for t in TRANSFORMS for p in POSITIONS}
    assert not [each for each in told.items() if str(each[1]).startswith("wrong")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _MENDED)
def test_each_transform_is_one_graph(name: str) -> None:
    told = {_told(name, transform, where) for transform in TRANSFORMS for where in POSITIONS}
    assert told <= {None, "refused by eager"}
