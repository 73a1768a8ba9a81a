"""Calls compiled graphs with the inner tensors of wrapper subclasses that require grad.

Input: the executable of a graph, and where its inputs are in which wrappers. Output: an executable
that takes the wrappers too, natively (extensions/runtime/wrappers.cpp). Python runs in a backward
alone, to make a wrapper of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..extension import runtime_module
from ..torch_types import Executable

__all__ = ["InnerTensors", "with_inner_tensors"]


class InnerTensors(NamedTuple):
    """A wrapper subclass that is taken apart before a graph. `parts`: (name, whether it has a
    gradient, the shape of that unless it is the part's own, in rows of `Gradients.shapes`).
    `parent`, `place`: the wrapper and the part of it that it is, or -1.
    `rebuild(parts, shape, strides)` wraps gradients.
    """

    parts: tuple[tuple[str, bool, tuple[tuple[int, int], ...] | None], ...]
    parent: int
    place: int
    rebuild: Callable[[Sequence[torch.Tensor], tuple[int, ...], tuple[int, ...]], torch.Tensor]


def with_inner_tensors(
    run: Executable,
    inputs: int,
    wrappers: tuple[InnerTensors, ...],
    taken: tuple[tuple[int, int, int], ...],
) -> Executable:
    """Wrap `run`, which takes `inputs` arguments and then others: its wrapper takes `wrappers` in
    between. The inputs in `taken`, (input, wrapper, part), get the history of their wrapper.
    """
    made: Executable = runtime_module().WithInnerTensors(run, (inputs,), wrappers, taken)
    return made
