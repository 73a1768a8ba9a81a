"""Rounding errors of the models of a suite, beside eager's (shared/models: its README tells of it).

In: the suite's module `harness`, a model's name, whether it trains. Out: a Row for each of results,
gradients and state: the root mean square error to float64 over three calls, relative to the whole.
"""

from __future__ import annotations

import copy
import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .measure import Row

__all__ = ["measure_case"]

Calls = list[dict[str, dict[str, Any]]]


def measure_case(harness: ModuleType, name: str, mode: str, seed: int) -> list[Row] | str:
    """`mode` is infer or train. A text: why there is no such run, or no float64 of it."""
    options = harness.Options(size="tiny", perf=False, seed=seed)
    experiment = harness.Experiment(name, mode, options)
    if (refused := experiment.setup()) is not None:
        return f"{refused['status']}: {refused['note']}"
    if experiment.t64 is None:
        return str(experiment.base["fp64"])
    system = harness.systems_mod.make("jitmagic")
    system.reset()
    state = copy.deepcopy(experiment.state0)
    runner = harness.Runner(experiment.plan, state, system).compile()
    ours, _ = harness.trajectory(runner)
    every = experiment.t64, experiment.tref, ours
    groups = dict.fromkeys(group for call in ours for group in call)
    return [row for group in groups if (row := _row(f"{name}, {mode}, {group}", group, *every))]


def _row(title: str, group: str, exact: Calls, eager: Calls, ours: Calls) -> Row | None:
    """None: nothing in it was rounded."""
    sums = [0.0, 0.0, 0.0]
    for wide, seen, mine in zip(exact, eager, ours, strict=True):
        for name, value in seen.get(group, {}).items():
            found = _squares(wide[group].get(name), value, mine[group][name])
            sums = [total + more for total, more in zip(sums, found, strict=True)]
    size, *errors = map(math.sqrt, sums)
    if not any(errors):
        return None
    return Row(title, errors[0] / size, errors[1] / size, torch.finfo(torch.float32).eps)


def _squares(exact: Any, eager: Any, ours: Any) -> tuple[float, float, float]:
    """Of the exact numbers, of eager's errors and of ours."""
    if not isinstance(exact, Tensor) or not isinstance(eager, Tensor):
        return 0.0, 0.0, 0.0
    if eager.dtype != torch.float32 or torch.equal(exact, eager) and torch.equal(exact, ours):
        return 0.0, 0.0, 0.0
    finite = exact.isfinite()
    wide, seen, mine = (torch.where(finite, t.double(), 0.0) for t in (exact, eager, ours))
    squares = wide.square(), (seen - wide).square(), (mine - wide).square()
    size, one, other = (float(t.sum()) for t in squares)
    return size, one, other
