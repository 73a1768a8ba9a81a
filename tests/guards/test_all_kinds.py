"""All kinds of guards together: natively and in Python the same guard fails first."""

from __future__ import annotations

import bisect
import contextlib
import random

import pytest

from jitmagic.frame.native import GuardProgram, _cost, lower_guards
from jitmagic.guards import guard as g
from jitmagic.guards.check import check, holds, show_guard, why
from jitmagic.guards.kinds import KINDS

from .test_check import PERTURBATIONS, all_guards, make_world, native

UNDONE = (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError)


@pytest.mark.parametrize("seed", range(130))
def test_native_and_reference_report_the_same_first_failure(seed: int) -> None:
    """In the order in which guards are lowered, after several mutations at once."""
    chosen = random.Random(seed)
    world = make_world()
    frame = world.snapshot()
    holding = [guard for guard in all_guards(world) if holds(guard, frame)]
    some = sorted(chosen.sample(holding, chosen.randint(5, 60)), key=_cost)
    program = native(some, world, frame)
    assert program.first_failure((*frame.args, *frame.cells)) == -1
    for name in chosen.sample(sorted(PERTURBATIONS), chosen.randint(1, 3)):
        with contextlib.suppress(*UNDONE):  # the one before took away what it changes
            PERTURBATIONS[name](world)
    after = world.snapshot()
    step = program.first_failure((*after.args, *after.cells))
    lengths = [
        len(lower_guards(some[:n], (), world.space, frame.builtins)[0])
        for n in range(1, len(some) + 1)
    ]
    failed = None if step < 0 else some[bisect.bisect_right(lengths, step)]
    first = check(some, after)
    if isinstance(failed, g.SizesRelate) and isinstance(first, g.SizesRelate):
        between = sorted((some.index(failed), some.index(first)))  # those in a row are one step
        assert all(isinstance(one, g.SizesRelate) for one in some[slice(*between)])
    else:
        assert failed is first, (failed, first)


def test_every_kind_of_guard_is_ranked_lowered_checked_and_shown() -> None:
    """The mutations above check that the results agree."""
    world = make_world()
    frame = world.snapshot()
    examples = {type(guard): guard for guard in all_guards(world)}
    parts = [part for part in vars(g).values() if isinstance(part, type)]
    kinds = {part for part in parts if issubclass(part, g.Guard)} - {g.Guard}
    assert set(examples) == kinds == set(KINDS)
    for guard in examples.values():
        steps, _ = lower_guards((guard,), (), world.space, frame.builtins)
        assert GuardProgram(steps).check((*frame.args, *frame.cells)) == holds(guard, frame)
        assert show_guard(guard) and why(guard, frame)


def test_programs_of_many_guards_agree_with_the_reference() -> None:
    chosen = random.Random(0)
    for name, perturb in PERTURBATIONS.items():
        world = make_world()
        frame = world.snapshot()
        holding = [guard for guard in all_guards(world) if holds(guard, frame)]
        some = chosen.sample(holding, 12)
        program = native(some, world, frame)
        assert program.check((*frame.args, *frame.cells)) and check(some, frame) is None
        perturb(world)
        after = world.snapshot()
        agreed = check(some, after) is None
        assert program.check((*after.args, *after.cells)) == agreed, (name, some)
