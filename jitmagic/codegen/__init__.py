"""Turns a Schedule into a Plan and the source text of its kernels.

    plan              the plan as data, for one size tuple or for all of them
    rendering         the stage: `render`, `render_template`, `choices` and RENDERERS
    build_plan        slots, memory, launches, ATen calls and frees of a schedule
    equal_kernels     merges kernels that differ only in their buffers
    loop_structure    the loops and passes of a nest, from which every renderer starts
    collapsed_axes    merges axes that are one in memory
    kernel, kernel_tiles, kernel_values   the kernel language: its statements and values
    loop_form         builds the loop form of a kernel: loops around the passes of a nest
    linearize, linear_values   place and name values; expand lowers reductions for scalar loops
    live_values       orders the values of a point so that few are held at once
    kernel_interpreter, kernel_evaluator   what statements and values mean
    kernel_verifier, kernel_walk   what must hold of a kernel; its blocks and values
    scalar_loops, numba/   print kernels as scalar loops in any language, and in numba
    vector_lanes      the axis that vector lanes run along, and their number
    cpp/              C++ for vectors and threads
    triton/           Triton, for tiles of a GPU
    blocks/           programs of the block interpreter, which needs no compiler
    attention/, products/   kernels of flex_attention; matrix products
    config            what tuning may override

Scalar operations are rows of operators/scalar.py; each renderer has one module with their lines.
`rendering` is imported at the first use of one of its names: what runs a stored plan needs `plan`
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..late import load

if TYPE_CHECKING:
    from .rendering import RENDERERS, Renderer, choices, render, render_template, verify_kernels

__all__ = ["RENDERERS", "Renderer", "choices", "render", "render_template", "verify_kernels"]


def __getattr__(name: str) -> Any:
    """Import the renderers at the first use of one of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load("codegen.rendering"), name)
