"""Schedules a LoopProgram: chooses the fusions, the order of steps and the memory plan.

In: the program of the lowering (one nest per ATen op), the target's facts, the options. Out: a
Schedule whose program uses the same IR. Nothing here depends on a renderer. Every fusion that was
made or refused has its reason in words.

    schedule, below   the order of the steps
    libraries/        rewrites for the libraries of GPUs
    products, product_chains   small matrix products and those of few rows as nests, which fuse
    dequantised_products   products with quantised weights as loop nests
    dependencies      which step reads and writes what
    fuse              the search; groups, open_nests are its state, legality, profit its judges
    order, tile       the final order of the nests, and their canonical form
    split_reductions  parallelism for programs with few rows
    memory, sized_memory   where temporaries lie in the pool; with symbolic sizes, by regions
    late_waits        collectives that run beside other steps
    column_sums       sums over rows in the nest that computes the rows
    externs, index_checks, deferred_writes, substitution   parts of these

Each module's head says what it assumes and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..devices import Target
from ..late import late_names
from ..loops.ir import Extern, LoopProgram, Nest
from ..loops.ops.extern import started_by
from ..loops.sizes import is_dynamic
from ..options import Options
from .dependencies import analyse
from .externs import without_unread_values
from .fuse import Fusion, fuse
from .groups import Groups
from .memory import plan_memory
from .order import drop_dead_stores, operations_in, ordered_program
from .product_chains import join_chains
from .products import (
    generated_products,
    multiplies_halves,
    open_products,
    with_generated_products,
)
from .result import Decision, Schedule
from .tile import drop_unit_axes

if TYPE_CHECKING:
    from .column_sums import with_column_sums
    from .dequantised_products import has_dequantised_products, with_dequantised_products
    from .late_waits import with_late_waits
    from .libraries.activations import with_activations
    from .libraries.aligned_products import with_aligned_rows
    from .libraries.convolution_biases import with_separate_biases
    from .libraries.depthwise import with_own_depthwise_convolutions
    from .libraries.dropouts import with_own_dropouts
    from .libraries.layouts import turned_outputs, with_images_channels_last
    from .sized_memory import plan_regions
    from .split_reductions import split_reductions as with_split_reductions
else:
    late_names(
        globals(),
        {
            "schedule.column_sums": "with_column_sums",
            "schedule.late_waits": "with_late_waits",
            "schedule.dequantised_products": "has_dequantised_products, with_dequantised_products",
            "schedule.libraries.activations": "with_activations",
            "schedule.libraries.aligned_products": "with_aligned_rows",
            "schedule.libraries.convolution_biases": "with_separate_biases",
            "schedule.libraries.depthwise": "with_own_depthwise_convolutions",
            "schedule.libraries.dropouts": "with_own_dropouts",
            "schedule.libraries.layouts": "turned_outputs, with_images_channels_last",
            "schedule.sized_memory": "plan_regions",
            "schedule.split_reductions": "split_reductions as with_split_reductions",
        },
    )

__all__ = [
    "Decision",
    "Schedule",
    "operations_in",
    "product_choices",
    "schedule",
    "turned_outputs",
]


def schedule(
    program: LoopProgram,
    target: Target,
    options: Options,
    generated: Mapping[str, bool] = MappingProxyType({}),
    saved: int = 0,
) -> Schedule:
    """Fuse the nests, order the steps and plan their memory.

    `generated`: by step name, whether a matrix product is a generated kernel (True) or a library
    call (False), for those that tuning has measured. `saved`: this many of the last outputs are
    read only by jitmagic's own backward, which accepts any layout.
    """
    products: list[Decision] = []
    if _has_calls(program):
        # Before fusion: a product that is written as a nest can fuse with its readers.
        if options.fuse and has_dequantised_products(target):
            program, products = with_dequantised_products(program, target)
        if options.fuse and generated_products(target):
            program, made = with_generated_products(program, target, generated)
            products += made
    program = _prepared(program, target, options, saved)
    graph = analyse(program)
    groups = Groups(program, graph, multiplies_halves(target))
    fusion = Fusion(program, graph, target, groups, products)
    if options.fuse:
        fuse(fusion)
    drop_dead_stores(fusion)
    if options.fuse:
        join_chains(fusion)
    fused = ordered_program(fusion, exact=options.precision != "fast")
    if target.multiprocessors:
        # After fusion: whether a reduction leaves cores idle depends on its whole nest.
        fused = with_split_reductions(with_column_sums(fused, target), target)
    if any(isinstance(step, Extern) and started_by(step.op) for step in fused.steps):
        fused = with_late_waits(fused)
    decisions = tuple(fusion.decisions)
    memory = plan_regions(fused) if is_dynamic(fused) else plan_memory(fused)
    return Schedule(
        fused, memory.pool, memory.pool_bytes, memory.last_use, memory.reused, decisions
    )


def product_choices(
    program: LoopProgram, target: Target, options: Options
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return the matrix products that can be computed in two ways, see `open_products`."""
    makes = options.fuse and generated_products(target)
    return open_products(program, target) if makes else {}


def _has_calls(program: LoopProgram) -> bool:
    return any(isinstance(step, Extern) for step in program.steps)


def _prepared(program: LoopProgram, target: Target, options: Options, saved: int) -> LoopProgram:
    program = without_unread_values(program)
    if _has_calls(program):
        program = _with_better_calls(program, target, options, saved)
    steps = (drop_unit_axes(s) if isinstance(s, Nest) else s for s in program.steps)
    return replace(program, steps=tuple(steps))


def _with_better_calls(
    program: LoopProgram, target: Target, options: Options, saved: int
) -> LoopProgram:
    program = with_separate_biases(program)
    if options.fuse:
        program = with_own_dropouts(program, target, options.cuda_graphs)
    program = with_images_channels_last(program, saved, options.precision == "fast")
    if options.fuse:
        program = with_own_depthwise_convolutions(program, target)
    program = with_aligned_rows(program)
    return with_activations(program, target) if options.fuse else program
