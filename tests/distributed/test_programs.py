"""Programs on two gloo ranks: values, gradients, order of collectives, graphs and breaks.

All programs run in one pair of processes, which the first test starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

from .corpus import Program, load
from .runner import Outcome, run_all

STATED_FOR = "2.13"  # the torch whose library code the counts of breaks are stated for
PROGRAMS = load()
_SAMPLED = 4  # one of so many programs runs with one rank as eager
# The forward runs again for gradients of gradients, and its collectives with it.
_NEVER_MIXED = ("gradients of gradients of distributed.nn.functional.all_reduce",)
pytestmark = pytest.mark.timeout(900)  # the first test runs everything


@cache
def _outcomes() -> dict[str, Outcome]:
    return {outcome.title: outcome for outcome in run_all(list(PROGRAMS), "jitmagic")}


def _parameters() -> Iterator[object]:
    for program in PROGRAMS.values():
        reason = program.xfail
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        yield pytest.param(program, marks=marks, id=program.title)


@pytest.mark.parametrize("program", list(_parameters()))
def test_program_answers_as_eager_on_both_ranks(program: Program) -> None:
    outcome = _outcomes()[program.title]
    assert not outcome.wrong, outcome.wrong
    if program.order == "eager":
        assert not outcome.reordered, outcome.reordered


@pytest.mark.skipif(not torch.__version__.startswith(STATED_FOR), reason="counts differ by torch")
def test_graphs_and_breaks_are_as_stated() -> None:
    found, stated = {}, {}
    for title, outcome in _outcomes().items():
        program = PROGRAMS[title]
        found[title] = (outcome.graphs, outcome.breaks, outcome.eager)
        stated[title] = (program.graphs, program.breaks, program.eager)
    assert {
        title: (found[title], stated[title]) for title in found if found[title] != stated[title]
    } == {}


def test_rank_that_runs_as_eager_fits_one_that_is_compiled() -> None:
    """All of them: python -m tests.distributed --system mixed."""
    titles = [title for title in list(PROGRAMS)[::_SAMPLED] if title not in _NEVER_MIXED]
    titles += [title for title in PROGRAMS if "transposed" in title or "in memory first" in title]
    for outcome in run_all(titles, "mixed", seconds=20):
        assert not outcome.wrong, outcome.wrong
        if PROGRAMS[outcome.title].order == "eager":
            assert not outcome.reordered, (outcome.title, outcome.reordered)


_JOINED = {  # collectives of the first rank, as eager and where small ones are joined
    "small gathers of several layouts, one of which a product needs": (20, 8),
    "small reductions, scatters and broadcasts of several sizes": (56, 28),
    "gradients of small gathers and scatters": (48, 16),
    "a tagged step that clips a sequence-parallel model": (42, 30),
    "gradients averaged by hand after the backward": (16, 4),
    "FSDP2, parameters gathered in full by tagged code": (12, 1),
    "two collectives that are equal on one rank": (8, 4),
    "works in a list, in another order on each rank": (12, 4),
    "backwards of independent collectives, in the other order on one rank": (16, 16),
}


def test_small_collectives_are_joined_alike_on_both_ranks() -> None:
    """All programs: python -m tests.distributed --system joined."""
    outcomes = list(run_all(list(_JOINED), "joined", seconds=20))
    assert not [outcome.wrong for outcome in outcomes if outcome.wrong]
    assert {outcome.title: outcome.started for outcome in outcomes} == _JOINED


@pytest.mark.skipif(not torch.__version__.startswith(STATED_FOR), reason="counts differ by torch")
def test_tensor_parallel_programs_have_the_same_graphs_under_autocast() -> None:
    """All programs: python -m tests.distributed --system autocast."""
    titles = [p.title for p in PROGRAMS.values() if p.run.__module__.endswith("tensor_parallel")]
    for outcome in run_all(titles, "autocast"):
        program = PROGRAMS[outcome.title]
        assert not outcome.wrong, outcome.wrong
        assert (outcome.graphs, outcome.breaks) == (program.graphs, program.breaks), outcome.title


def test_corpus_has_forty_programs_and_half_of_them_change_sizes() -> None:
    assert len(PROGRAMS) >= 40
    assert 2 * sum(program.changing for program in PROGRAMS.values()) >= len(PROGRAMS)


def test_distributed_tensors_of_changing_sizes_compile_twice() -> None:
    modules = ("tensor_parallel", "distributed_tensors")
    programs = [p for p in PROGRAMS.values() if p.run.__module__.endswith(modules)]
    twice = [p for p in programs if p.changing and (p.graphs, p.breaks, p.eager) == (2, 0, 0)]
    assert 2 * len(twice) >= len(programs)
    assert all(p.graphs <= 4 for p in programs)  # one more for each uneven size, or placement


def test_known_misses_are_not_whole() -> None:
    for program in PROGRAMS.values():
        assert not program.behind or program.breaks or program.eager or not program.graphs
