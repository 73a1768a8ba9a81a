"""Identity: a nan is found because it is the same object, tuples are not copied, and the characters
and small ints that CPython has once are one object each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import jitmagic

NAN, OTHER = float("nan"), float("nan")
COMPLEX, NUMPY = complex("nan"), np.float64("nan")
MIXED = [None, np.nan, "", NAN]
COMPLEXES, SCALARS = [COMPLEX], [NUMPY]
FIRST, SECOND = {"a": np.nan}, {"a": np.nan}
PAIR, EMPTY, FROZEN, TEXT, NUMBER = (1, 2), (), frozenset([1]), "text of a few words", 100_000
NUMBERS = [NUMBER]

EXPRESSIONS = """
np.nan in MIXED, NAN in MIXED, OTHER in MIXED, math.nan in MIXED, NAN not in MIXED
np.nan in (1, np.nan), (lambda n: n in [n])(float('nan')), float('nan') in [float('nan')]
MIXED.count(NAN), MIXED.count(np.nan), MIXED.count(OTHER), MIXED.index(np.nan), MIXED.index(NAN)
(lambda items: (items.remove(NAN), items))([1.0, OTHER, NAN])[1][1] is OTHER
MIXED == [None, np.nan, '', NAN], MIXED == [None, np.nan, '', OTHER]
(1, np.nan) == (1, np.nan), (1, NAN) != (1, OTHER), [NAN, 1] < [NAN, 2], (NAN, 1) <= (NAN, 1)
FIRST == SECOND, FIRST == {'a': OTHER}, np.nan in FIRST.values(), ('a', np.nan) in FIRST.items()
NAN is MIXED[3], NAN is MIXED[1], np.nan is MIXED[1], MIXED[3] is MIXED[1], NAN == MIXED[3]
COMPLEX in COMPLEXES, complex('nan') in COMPLEXES, COMPLEX is COMPLEXES[0]
NUMPY in SCALARS, NUMPY is SCALARS[0], np.float64('nan') in SCALARS
NAN in {NAN, 1}, OTHER in {NAN, 1}, (lambda table: (NAN in table, OTHER in table))({NAN: 1})
tuple([]) is (), () is EMPTY, EMPTY is tuple({}), (1,)[1:] is (), PAIR[2:] is (), PAIR * 0 is ()
tuple(PAIR) is PAIR, PAIR[:] is PAIR, PAIR + () is PAIR, () + PAIR is PAIR, PAIR * 1 is PAIR
(1, 2) is (1, 2), (lambda a, b: a is b)((1, 2), (1, 2)), tuple([1, 2]) is (1, 2)
PAIR[::-1] is PAIR, PAIR[:1] is PAIR, PAIR + (3,) is PAIR, [] is [], NUMBERS[:] is NUMBERS
frozenset(FROZEN) is FROZEN, str(TEXT) is TEXT, TEXT[:] is TEXT, int(NUMBER) is NUMBER
'a' is chr(97), chr(97) is chr(97), chr(255) is chr(255), chr(256) is chr(256), TEXT[0] is 't'
TEXT[0] is TEXT[12], TEXT[0:1] is TEXT[0], TEXT[40:] is '', ''.join([]) is str(), 'x' * 0 is ''
b'abc'[:1] is b'a', bytes() is b'', b'ab'[2:] is b'', b'a'[0] is 97, 'a'.upper() is chr(65)
'ab' is ''.join(['a', 'b']), TEXT + TEXT is TEXT + TEXT, f'{len(PAIR)}' is '2', 'b' is 'ab'[1:]
len(PAIR) is 2, int('256') is 256, int('257') is int('257'), -5 is int('-5'), ord('a') is 97
NUMBER is NUMBERS[0], TEXT is TEXT, x.shape is x.shape, torch.Size([]) is torch.Size([])
"""


def _runs(text: str, tag: Callable[[Any], Any]) -> list[Any]:
    names = dict(globals())
    exec(f"def run(x):\n return ({text}), x * 2", names)
    run = tag(names["run"])
    return [repr(run(torch.ones(2))) for _ in range(2)]


@pytest.mark.parametrize("text", EXPRESSIONS.strip().splitlines())
@pytest.mark.filterwarnings("ignore:.is not. with:SyntaxWarning", "ignore:.is. with:SyntaxWarning")
def test_same_object_as_in_eager(text: str) -> None:
    compiled = _runs(text, lambda run: jitmagic.jit(run, backend="eager"))
    assert compiled == _runs(text, lambda run: run)


def _of_two(x: Any, left: Any, right: Any) -> Any:
    return left is right, left in [right], (left,) == (right,), x * 2


# A tuple is its own object; a nan may become another one, or a number, from call to call.
ARGUMENTS = [
    (NAN, NAN), (NAN, OTHER), (OTHER, OTHER), (1.5, NAN), (NAN, NAN), (PAIR, PAIR), (EMPTY, ()),
    (PAIR, tuple([1, 2])), (PAIR, PAIR), (TEXT, TEXT), (NUMBER, NUMBERS[0]), (NAN, OTHER),
]  # fmt: skip


def test_identity_of_arguments_changes_between_calls() -> None:
    compiled = jitmagic.jit(_of_two, backend="eager")
    for pair in ARGUMENTS:
        x = torch.ones(2)
        assert repr(compiled(x, *pair)) == repr(_of_two(x, *pair)), pair


@pytest.mark.parametrize("numbers", [(1.0, 2.0, math.nan, NAN, 3.0, math.nan), (1.5, 2.5, NAN)])
def test_number_that_varied_is_found_by_identity(numbers: tuple[float, ...]) -> None:
    def run(x: Any, number: float, other: float) -> Any:
        found = number in [math.nan], (number, 1) == (other, 1), [other].count(number)
        return *found, number in {5.0: 1, 7.0: 2}, x * 2

    compiled = jitmagic.jit(run, backend="eager")
    for number in numbers:
        for other in (number, float(str(number)), number + 1):
            x = torch.ones(2)
            assert repr(compiled(x, number, other)) == repr(run(x, number, other)), (number, other)


def test_identity_in_a_list_changes_between_calls() -> None:
    items: list[Any] = [NAN, NAN]

    def run(x: Any) -> Any:
        return items[0] in items[1:], items[0] is items[1], x * 2

    compiled = jitmagic.jit(run, backend="eager")
    for second in (NAN, NAN, OTHER, OTHER, NAN, 1.0, math.nan, NAN):
        items[1] = second
        assert repr(compiled(torch.ones(2))) == repr(run(torch.ones(2))), second


def test_returned_nan_is_the_callers() -> None:
    compiled = jitmagic.jit(lambda x, n: (x * 2, n, n in [n, 1]), backend="eager")
    for number in (NAN, OTHER, NAN):
        assert compiled(torch.ones(2), number)[1] is number
