"""A part of what `python -m tests.operators` tries: each operator once in each way."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's database of samples imports it")

from .compare import examine_together  # noqa: E402
from .trials import OPERATORS, name_of, trials  # noqa: E402

_TRIED = (
    ("call", torch.float32, 2),
    ("call", torch.int64, 1),
    ("call", torch.complex64, 1),
    ("in place", torch.float32, 1),
    ("out", torch.float32, 2),
    ("errors", torch.float32, 2),
)


_TOGETHER = 6  # operators in one compiled function: compiling is what costs


@cache
def _found(places: range) -> list[str]:
    """What the operators at these places in OPERATORS do otherwise, all in one function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated operators
        ops = [OPERATORS[place] for place in places]
        # Calls into `out` break graphs: behind all others they leave these in one.
        tried = [trial for way, *what in _TRIED for op in ops for trial in trials(op, way, *what)]
        return examine_together(tried)


@pytest.mark.parametrize("place", range(len(OPERATORS)), ids=lambda n: name_of(OPERATORS[n]))
def test_operator(place):
    """Beside others; each by itself where these show a difference: whose it is."""
    first = place // _TOGETHER * _TOGETHER
    places = range(first, min(first + _TOGETHER, len(OPERATORS)))
    if not (together := _found(places)):
        return
    found = _found(range(place, place + 1))
    assert not found, "\n".join(found)
    only_beside_others = not any(_found(range(other, other + 1)) for other in places)
    assert not only_beside_others, "\n".join(together)
