"""Which steps of a plan are recorded, and where it is cut."""

from __future__ import annotations

import torch

from jitmagic.codegen.plan import Alloc, Call, Free, Launch, Plan, Slot, View
from jitmagic.runtime.cuda_graphs.partitions import partitions_of
from jitmagic.runtime.cuda_graphs.plan_parts import split_plan

CPU, F32 = torch.device("cpu"), torch.float32
aten = torch.ops.aten
ROOM = [torch.zeros(4)] * 2


def foreign(made: int, *read: int) -> Call:
    return Call(aten.cat.default, ([Slot(slot) for slot in read],), {}, (made,), foreign=True)


def launches(count: int, *args: int) -> list[Launch]:
    return [Launch("k", args, args[-1:])] * count


def alloc(slot: int) -> Alloc:
    return Alloc(slot, (4,), (1,), F32, CPU)


def plan_of(*steps, outputs=(2,), inputs=2, **facts) -> Plan:
    return Plan("p", inputs, facts.pop("constants", ()), steps, outputs, **facts)


def shown(plan: Plan, inputs=ROOM) -> list[tuple[int, int, bool]]:
    parts = partitions_of(plan, inputs)
    return [(part.steps.start, part.steps.stop, not part.refused) for part in parts]


def test_a_plan_without_refused_steps_is_one_part():
    assert shown(plan_of(alloc(2), *launches(4, 0, 2))) == [(0, 5, True)]
    assert shown(plan_of(alloc(2), *launches(1, 0, 2))) == [(0, 2, False)]  # few launches
    assert shown(plan_of(outputs=(0,))) == [(0, 0, False)]


def test_memory_goes_with_the_next_launch_and_releases_with_the_last():
    first = alloc(2), *launches(4, 0, 2)
    last = alloc(4), *launches(4, 3, 4), Free(3)
    plan = plan_of(*first, foreign(3, 2), Free(2), *last, outputs=(4,))
    assert shown(plan) == [(0, 5, True), (5, 7, False), (7, 13, True)]


def test_parts_of_few_launches_are_launched_with_their_neighbours():
    few = foreign(3, 2), *launches(2, 3, 3), foreign(4, 3)
    plan = plan_of(alloc(2), *launches(4, 0, 2), *few, *launches(4, 4, 4), outputs=(4,))
    assert shown(plan) == [(0, 5, True), (5, 9, False), (9, 13, True)]
    (_, between, _) = partitions_of(plan, ROOM)
    assert between.refused == (
        "aten.cat.default is a custom operator: a recording may miss its effects",
    )
    few = plan_of(alloc(2), *launches(2, 0, 2), foreign(3, 2), outputs=(3,))
    assert shown(few) == [(0, 4, False)]


def test_only_what_reads_an_input_elsewhere_is_launched():
    """A number of the program is a scalar of the CPU, which a few kernels read."""
    gpu = torch.device("meta")
    number, x = torch.tensor(0.5), torch.zeros(4, device=gpu)
    made = Alloc(2, (4,), (1,), F32, gpu)
    steps = made, *launches(5, 0, 2), View(3, 1, (), (), 0, F32), *launches(1, 3, 2)
    plan = plan_of(*steps, *launches(5, 0, 2), device=gpu)
    assert shown(plan, [x, number]) == [(0, 6, True), (6, 8, False), (8, 13, True)]
    (_, between, _) = partitions_of(plan, [x, number])
    assert between.refused == ("input 1 lives on cpu, not on meta",)
    assert shown(plan, [x, x]) == [(0, 13, True)]


def test_steps_between_a_collective_and_its_wait_are_not_recorded():
    """Its result is computed on a stream of its own meanwhile."""
    wait = Call(torch.ops._c10d_functional.wait_tensor.default, (Slot(2),), {}, (3,))
    plan = plan_of(alloc(2), *launches(5, 0, 2), wait, *launches(5, 0, 3), outputs=(3,))
    assert shown(plan) == [(0, 12, False)]


def test_memory_that_two_inputs_of_a_part_share():
    """By its schema, alias returns its argument: a recording may copy both if none is written."""
    alias = Call(aten.alias.default, (Slot(2),), {}, (3,))
    steps = alloc(2), *launches(5, 0, 2), foreign(4, 2), alias, foreign(5, 3), alloc(6)
    for last, why in (((2, 3, 6), ""), ((1, 3), ""), ((2, 3), "two of its inputs share")):
        plan = plan_of(*steps, *launches(5, *last), outputs=(3, 6))
        assert shown(plan)[0] == (0, 6, True)
        assert shown(plan)[-1] == ((6, 15, False) if why else (9, 15, True))
        assert why in "; ".join(partitions_of(plan, ROOM)[-1].refused)


def test_a_part_that_returns_its_input_is_launched():
    alias = Call(aten.alias.default, (Slot(2),), {}, (3,))
    first = alloc(2), *launches(5, 0, 2), foreign(4, 2)
    plan = plan_of(*first, alias, *launches(5, 1, 4), outputs=(3,))
    assert shown(plan) == [(0, 6, True), (6, 13, False)]
    assert "returns memory of its argument" in partitions_of(plan, ROOM)[-1].refused[-1]


def test_a_part_may_write_what_it_takes():
    """Copies of what enters a recording go back only if its kernels write it."""
    steps = alloc(2), *launches(1, 0, 2), View(3, 2, (2,), (1,), 1, F32), *launches(1, 1, 3)
    plan = plan_of(*steps, *launches(1, 2, 1), outputs=(3,), mutated=(1,))
    parts = split_plan(plan, [range(2), range(2, 4), range(4, 5)])
    assert [part.inputs for part in parts] == [(0,), (1, 2), (1, 2)]
    assert [part.plan.mutated for part in parts] == [(), (1,), (0,)]
    assert [part.outputs for part in parts] == [(2, 3), (), ()]


def test_names_and_lines_go_with_their_launches():
    steps = alloc(2), *launches(2, 0, 2), foreign(3, 2), *launches(1, 3, 3), foreign(4, 3)
    lines = ("f.py", 1), ("f.py", 2)
    plan = plan_of(*steps, outputs=(4,), titles=("p", "a", "b", "c"), call_lines=lines)
    parts = [part.plan for part in split_plan(plan, [range(3), range(3, 4), range(4, 6)])]
    assert [part.titles for part in parts] == [("p", "a", "b"), ("p",), ("p", "c")]
    assert [part.call_lines for part in parts] == [(), lines[:1], lines[1:]]
