"""Tagged generators, coroutines and async generators behave as in eager and are compiled between
their suspension points. Each use runs three times with the original and with the tagged function.
"""

from __future__ import annotations

import copy

import pytest

import jitmagic
from jitmagic.records import Compiled

from . import coroutines, generator_forms, generators
from .random_programs import observed, random_function
from .registry import USES, pieces, same

assert generators and generator_forms and coroutines


@pytest.mark.parametrize("name", USES)
def test_behaves_as_in_eager(name: str) -> None:
    function, use = USES[name]
    tagged = jitmagic.jit(copy.copy(function))
    for _ in range(3):
        same(use(tagged), use(function))


ONE_GRAPH = (
    "items_of_a_loop",
    "values_sent",
    "yield_from",
    "closures",
    "methods",
    "asynchronous_generators",
)


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_each_piece_is_one_graph(name: str) -> None:
    function, use = USES[name]
    tagged = jitmagic.jit(function, fullgraph=True)
    use(tagged)
    outcomes = pieces(tagged)
    assert outcomes
    assert all(type(outcome) is Compiled for outcome in outcomes), outcomes


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    function = random_function(seed)
    tagged = jitmagic.jit(function, backend="eager")
    for run in range(4):
        assert observed(tagged, 10 * seed + run) == observed(function, 10 * seed + run)
