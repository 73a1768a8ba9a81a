"""A part of what `python -m tests.operators` tries: each operator once in each way."""

from __future__ import annotations

import warnings

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


@pytest.mark.parametrize("op", OPERATORS, ids=name_of)
def test_operator(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of deprecated operators
        tried = [trial for way, *what in _TRIED for trial in trials(op, way, *what)]
        found = examine_together(tried)
    assert not found, "\n".join(found)
