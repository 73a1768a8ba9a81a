"""Decides which parts of a plan are recorded as CUDA graphs, around what cannot be.

In: a Plan and the tensors of a call. Out: ranges of its steps, each with the reason why it is
launched step by step, or none. Consecutive steps that can be recorded form one part, if replaying
it takes less than launching them; the steps between form parts that are launched. A plan of which
all or nothing is recorded is one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from ...codegen.plan import Call, Free, Launch, Plan
from . import refusals
from .plan_parts import PlanPart, shared_memory, split_plan
from .refusals import FEW_LAUNCHES, communicates, launch_time, step_refusals

__all__ = ["Partition", "partitions_of", "reasons"]

# Host time in us, rounded up, of the two more executables that a part in between makes: six ATen
# calls in one took 5.1 us on an EPYC, in three 6.3.
PART_TIME = 2


class Partition(NamedTuple):
    """Steps of a plan. `refused`: the reasons why they are not recorded; none: they are."""

    steps: range
    refused: tuple[str, ...]


def partitions_of(plan: Plan, inputs: Sequence[torch.Tensor]) -> tuple[Partition, ...]:
    """Return the parts of the plan, which cover its steps in order."""
    whys = step_refusals(plan, inputs)
    every = range(len(plan.steps))
    if not any(whys):
        few = launch_time(plan.steps) < refusals.REPLAY_TIME
        return (Partition(every, (FEW_LAUNCHES,) if few else ()),)
    if communicates(plan):  # its result is still being computed on another stream when it returns
        return (Partition(every, reasons(whys)),)
    made = _merged(_worthwhile(plan, _by_refusal(plan, whys)))
    if len(made) == 1:
        return (Partition(every, reasons(whys)),)
    return tuple(_merged(_separate(plan, made)))


def reasons(whys: Iterable[str]) -> tuple[str, ...]:
    """Return each sentence once. That few launches do not pay counts if there is no other."""
    found = [why for why in dict.fromkeys(whys) if why]
    return tuple([why for why in found if why != FEW_LAUNCHES] or found)


def _by_refusal(plan: Plan, whys: Sequence[str]) -> Iterator[Partition]:
    """Yield the parts of consecutive steps that can all be recorded, or none of which can. Memory
    belongs to the next launch, a release to the last one.
    """
    works = [n for n, step in enumerate(plan.steps) if isinstance(step, Launch | Call)]
    begin = 0
    groups = [list(group) for _, group in groupby(works, key=lambda n: not whys[n])]
    for group in groups:
        end = group[-1] + 1
        while end < len(plan.steps) and isinstance(plan.steps[end], Free):
            end += 1
        end = len(plan.steps) if group is groups[-1] else end
        yield Partition(range(begin, end), reasons(whys[n] for n in group))
        begin = end


def _worthwhile(plan: Plan, parts: Iterable[Partition]) -> Iterator[Partition]:
    """Yield the parts; those whose launches take less time than a replay are not recorded."""
    for part in parts:
        time = launch_time(plan.steps[part.steps.start : part.steps.stop])
        few = not part.refused and time <= refusals.REPLAY_TIME + PART_TIME
        yield Partition(part.steps, (FEW_LAUNCHES,)) if few else part


def _merged(parts: Iterable[Partition]) -> list[Partition]:
    """Join neighbours that are both launched."""
    made: list[Partition] = []
    for part in parts:
        if made and made[-1].refused and part.refused:
            last = made.pop()
            steps = range(last.steps.start, part.steps.stop)
            made.append(Partition(steps, reasons((*last.refused, *part.refused))))
        else:
            made.append(part)
    return made


def _separate(plan: Plan, parts: Sequence[Partition]) -> Iterator[Partition]:
    """Yield the parts; those are launched whose inputs and results are not separate memory."""
    sharing = shared_memory(plan)
    if not sharing:
        yield from parts
        return
    for part, own in zip(parts, split_plan(plan, [part.steps for part in parts]), strict=True):
        why = _sharing_refusal(own, sharing)
        yield Partition(part.steps, (why,)) if why and not part.refused else part


def _sharing_refusal(part: PlanPart, sharing: Mapping[int, int]) -> str:
    """Return why a part is not recorded: recordings copy inputs, and results, one by one."""
    owners = [sharing.get(slot, slot) for slot in part.inputs]
    if any(owners.count(owners[number]) > 1 for number in part.plan.mutated):
        return "it writes to memory that two of its inputs share"
    if any(sharing.get(slot, slot) in owners for slot in part.outputs):
        return "an operator returns memory of its argument"
    return ""
