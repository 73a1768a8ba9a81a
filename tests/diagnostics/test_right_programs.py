"""passport flags none of 200 right programs: those of test_passport.py, and two of them in a row.

A file of its own, so that it runs beside that one: each program is compiled with its backward.
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
def test_right_programs_of_two_are_not(first: str) -> None:
    names = list(PROGRAMS)
    start = names.index(first)
    for second in (names * 2)[start : start + SECOND]:

        def both(x: Tensor, second: str = second) -> Any:
            return PROGRAMS[second](PROGRAMS[first](x))

        found = jitmagic.passport(both)(given().requires_grad_(second not in ("argmax", "ge")))
        assert found.lines
        assert found.agrees, (second, found)
