"""Builds one executable from one ATen graph: lower, schedule, render, load, by the best working
tier.

Input: the graph of a forward or of a backward. Output: a callable of its inputs. A tier that fails
falls back to the next with a warning; the last one replays the graph op by op. With max-autotune,
products are tuned before the schedule and kernels before they are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from ..autograd.saved import SavedLayouts
from ..autograd.shell import fx_executable
from ..codegen import render
from ..errors import CompileFailed
from ..loops.lower import device_of_kernels, lower
from ..loops.verify import verify
from ..options import Options
from ..records import Recording
from ..runtime.load import load
from ..runtime.native import Executable
from ..runtime.tier_warnings import warn_no_compiler, warn_weaker_tier
from ..schedule import schedule, turned_outputs
from ..target import Target, find_target, weaker_target
from .background import left_to_background
from .lazy_backwards import at_first_use, stand_in_inputs, warn_of_replay
from .profiler_names import call_places, titles_of
from .sized_joint import Builders
from .sizes import Build
from .tuning import best_kernels, best_products

__all__ = ["build_executable", "build_native", "builders_for_sizes"]

Examples = Callable[[], Sequence[torch.Tensor]]  # tensors like the graph's inputs


def build_executable(
    gm: GraphModule,
    name: str,
    options: Options,
    record: Recording,
    make_inputs: Examples,
    kernels: Build | None,
    saved: SavedLayouts | None = None,
) -> Executable:
    """Build kernels by the best tier that works; a tier that fails falls back visibly.

    `kernels` may return an executable of a template for all sizes. `saved`: the outputs that only
    the backward reads, whose strides the kernels may choose.
    """
    device = device_of_kernels(gm)
    target = find_target(device, options)
    if target.device == "cpu" and target.tier != "cpp" and options.cpu_tier == "auto":
        warn_no_compiler(target, options)
    if kernels is not None and (run := kernels(gm, name, target, record)) is not None:
        return run
    while target.tier != "aten":
        try:
            return build_native(gm, name, target, options, record, make_inputs, saved)
        except (CompileFailed, ImportError) as error:
            weaker = weaker_target(target, options)
            warn_weaker_tier(name, target, weaker, error)
            target = weaker
    return fx_executable(gm)


def build_native(
    gm: GraphModule,
    name: str,
    target: Target,
    options: Options,
    record: Recording,
    make_inputs: Examples,
    saved: SavedLayouts | None = None,
) -> Executable:
    """Run the stages with kernels of one tier."""
    with record.stage(f"{name}: lower") as stage:
        program = stage.keep(lower(gm, name))
        if options.verify:
            verify(program)
    ours = best_products(program, target, options, record, make_inputs) if options.tunes else {}
    with record.stage(f"{name}: schedule") as stage:
        scheduled = stage.keep(
            schedule(program, target, options, ours, saved.count if saved else 0)
        )
        if options.verify:
            verify(scheduled.program)
    configs = best_kernels(scheduled, target, options, record, make_inputs) if options.tunes else {}
    with record.stage(f"{name}: render") as stage:
        plan, source = render(scheduled, target, configs)
        titles = titles_of(scheduled.program, gm, record.title)
        places = call_places(scheduled.program, gm)
        plan = replace(plan, titles=titles, call_lines=places)
        stage.keep((plan, source))
    if left_to_background(source, target, options, record):
        return _not_loaded
    with record.stage(f"{name}: load") as stage:
        loaded = load(plan, source, target, options, report=stage.say)
        stage.keep(replace(loaded, run=_not_loaded))  # the record outlives the entry
    if saved is not None:
        saved.set_strides(turned_outputs(program, scheduled.program))
    record.kernels += loaded.kernels
    record.cache_hits += loaded.kernels if loaded.cached else 0
    return loaded.run


def _not_loaded() -> tuple[Any, ...]:
    """Stand in for an executable that is never called."""
    return ()


def builders_for_sizes(options: Options, record: Recording) -> Builders:
    """Return the functions that build the executables of one joint graph for all sizes."""
    later = record.for_later()

    def graph(gm: GraphModule, name: str, record: Recording) -> Executable:
        return build_executable(gm, name, options, record, partial(stand_in_inputs, gm), None)

    def backward(
        build: Callable[[Recording], Executable], replay: Callable[[], GraphModule]
    ) -> Executable:
        return at_first_use(build, replay, options, later)

    def target(gm: GraphModule) -> Target:
        return find_target(device_of_kernels(gm), options)

    return Builders(target, graph, backward, partial(warn_of_replay, later))
