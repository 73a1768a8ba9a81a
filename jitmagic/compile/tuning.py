"""Measures variants of products and kernels between the stages, for mode="max-autotune".

Input: a LoopProgram before it is scheduled, a Schedule before it is rendered. Output: which matrix
products are jitmagic's own kernels, and how each kernel is written. The record has every trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ..codegen import choices, render
from ..codegen.plan import Config, Plan
from ..devices import Target
from ..loops.ir import LoopProgram
from ..loops.show import show
from ..options import Options
from ..records import Recording
from ..runtime.load import load
from ..runtime.tune import tune, tune_products
from ..schedule import Schedule, product_choices, schedule
from ..torch_types import Executable

__all__ = ["best_kernels", "best_products"]

Examples = Callable[[], Sequence[torch.Tensor]]


def best_products(
    program: LoopProgram,
    target: Target,
    options: Options,
    record: Recording,
    given: Examples,
) -> Mapping[str, bool]:
    """Choose which matrix products are jitmagic's own kernels, by timing the whole graph."""
    products = product_choices(program, target, options)
    if not products:
        return {}
    plainly = replace(options, cuda_graphs=False)

    def make(ours: Mapping[str, bool]) -> tuple[Plan, Executable]:
        plan, source = render(schedule(program, target, options, ours), target)
        return plan, load(plan, source, target, plainly).run

    with record.stage(f"{program.name}: tune") as stage:
        text = show(program)
        ours, found = tune_products(products, make, given, text, target, options, report=stage.say)
        stage.keep(found)
    return ours


def best_kernels(
    plan: Schedule,
    target: Target,
    options: Options,
    record: Recording,
    given: Examples,
) -> Mapping[str, Config]:
    """Choose the configuration of each kernel by timing it."""
    with record.stage(f"{plan.program.name}: tune") as stage:
        steps, _ = render(plan, target)
        found = tune(steps, choices(plan, target), given, target, options, report=stage.say)
        return stage.keep(found).configs
