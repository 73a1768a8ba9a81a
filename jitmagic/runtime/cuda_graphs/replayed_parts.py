"""Runs a plan whose parts are replayed, or launched, one after the other.

In: the parts of a plan (plan_parts.py), the executable of each and the replayers of those that are
recorded. Out: one executable, a native chain (extensions/runtime/split_graph.cpp): a tensor that
goes from a part to a later one is released after the last that reads it. What one recording yields
stays where it is for the next; what is launched between makes new memory, which the next recording
copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch

from ...codegen.plan import Plan
from ...protocols import Protocol
from ...torch_types import Executable
from ..native import Step, split_graph
from .graph_pool import GraphPool, Records
from .partitions import reasons
from .plan_parts import PlanPart
from .refusals import launch_count

__all__ = ["PartPool", "ReplayedParts", "chained"]


class _Replayer(Protocol):
    refused: str
    plan: Plan

    @property
    def recordings(self) -> Sequence[_Recording]: ...

    @property
    def replays(self) -> int: ...

    @property
    def last_use(self) -> int: ...

    def drop_unused(self) -> None: ...


class _Recording(Protocol):
    replays: int
    copied_bytes: int


class PartPool:
    """Counts the recordings of all parts of a plan as one user of a GraphPool."""

    def __init__(self, pool: GraphPool | PartPool) -> None:
        self._pool = pool
        self._parts: ref[ReplayedParts] | None = None

    def belongs_to(self, parts: ReplayedParts) -> None:
        self._parts = ref(parts)

    def note(self, user: Records) -> None:
        """Take note of a recording; see GraphPool."""
        parts = self._parts() if self._parts is not None else None
        self._pool.note(user if parts is None else parts)


class ReplayedParts:
    """Holds the replayers of the parts, which decide for themselves; `run` chains them."""

    def __init__(self, run: Executable, replayers: Sequence[_Replayer]) -> None:
        self.run, self.replayers = run, tuple(replayers)

    @property
    def recordings(self) -> list[_Recording]:
        """Return the recordings of all parts."""
        return [one for replayer in self.replayers for one in replayer.recordings]

    @property
    def replays(self) -> int:
        """Return the number of replays."""
        return sum(replayer.replays for replayer in self.replayers)

    @property
    def last_use(self) -> int:
        """Return when a recording was last replayed, as a count of all replays."""
        return max(replayer.last_use for replayer in self.replayers)

    def drop_unused(self) -> None:
        """Drop the recordings whose results have no other references."""
        for replayer in self.replayers:
            replayer.drop_unused()

    def describe(self) -> str:
        """Return a sentence about the calls so far, for `explain`."""
        replayed = [one for one in self.replayers if not one.refused]
        launches = sum(launch_count(one.plan) for one in replayed)
        every = sum(launch_count(one.plan) for one in self.replayers)
        last = [one.recordings[-1] for one in replayed if one.recordings]
        size = sum(one.copied_bytes // max(1, one.replays) for one in last)
        between = "; ".join(reasons(one.refused for one in self.replayers))
        return (
            f"{len(replayed)} of {len(self.replayers)} parts, {launches} of {every} launches, are "
            f"replayed as CUDA graphs, {self.replays} times so far, which copy {size:,} bytes a "
            f"call; the others are launched: {between}"
        )


def chained(plan: Plan, parts: Sequence[PlanPart], runs: Sequence[Executable]) -> Executable:
    """Return the executable of a plan that runs those of its parts in order."""
    constants = _constant_results(plan)
    places: dict[int | None, int] = {slot: slot for slot in range(plan.inputs)}
    for slot in (*constants, *(slot for part in parts for slot in part.outputs)):
        places[slot] = len(places)
    last = {slot: number for number, part in enumerate(parts) for slot in part.inputs}
    passing = last.keys() - set(range(plan.inputs)) - set(plan.outputs)
    steps = []
    for number, (part, run) in enumerate(zip(parts, runs, strict=True)):
        dead = [slot for slot in part.inputs if slot in passing and last[slot] == number]
        taken, released = (tuple([places[slot] for slot in some]) for some in (part.inputs, dead))
        steps.append(Step(run, taken, len(part.outputs), released))
    results = tuple(places[slot] for slot in plan.outputs)
    return split_graph(plan.inputs, steps, results, tuple(constants.values()))


def _constant_results(plan: Plan) -> dict[int | None, torch.Tensor | None]:
    """Return the constants among the results, by their slots; None is one of them."""
    found: dict[int | None, torch.Tensor | None] = {}
    for slot in plan.outputs:
        if slot is None:
            found[slot] = None
        elif plan.inputs <= slot < plan.inputs + len(plan.constants):
            found[slot] = plan.constants[slot - plan.inputs]
    return found
