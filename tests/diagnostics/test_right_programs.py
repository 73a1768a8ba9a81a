"""passport flags none of 200 right programs: those of test_passport.py, and two of them in a row.

A file of its own, so that it runs beside that one: programs are compiled with their backwards.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import jitmagic

from .test_passport import PROGRAMS, given

SQUARE = [name for name in PROGRAMS if PROGRAMS[name](given()).shape == (12, 12)][:14]
SECOND = 12  # for each first: 168 programs, with those above more than 200


@pytest.mark.parametrize("first", SQUARE)
def test_correct_compositions_are_not_flagged(first: str) -> None:
    """Each on an input of its own, so that each has its gradient; compiled together."""
    names = list(PROGRAMS)
    start = names.index(first)
    seconds = (names * 2)[start : start + SECOND]

    def each(*inputs: Tensor) -> list[Any]:
        return [PROGRAMS[n](PROGRAMS[first](x)) for n, x in zip(seconds, inputs, strict=True)]

    found = jitmagic.passport(each)(
        *(given().requires_grad_(name not in ("argmax", "ge")) for name in seconds)
    )
    results = [line for line in found.lines if line.name.startswith("result")]
    gradients = [line for line in found.lines if line.name.startswith("gradient")]
    assert len(results) == SECOND
    assert len(gradients) == len(set(seconds) - {"argmax", "ge"})
    assert found.agrees, found
