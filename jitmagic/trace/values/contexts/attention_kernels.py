"""The context manager sdpa_kernel, which chooses the kernels of attention in its block.

Input: constant backends. Output: `with_kernels`, the function that a call of attention records as
the target of its node. The process is not changed: an exit inside the block enters the real one.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.nn.attention import SDPBackend, sdpa_kernel

from ....graph.targets.attention_kernels import KernelChoice, WithKernels
from ....torch_types import AnyFunction
from ..base import Args, Kwargs, Machine
from .contexts import ContextValue, Row

__all__ = ["is_chosen", "with_kernels"]


class _Blocks(list[KernelChoice]):
    """The blocks around the present instruction, the outermost first."""


class _KernelRow(Row):
    decorates = False  # contextlib's decorator makes a new generator for each call

    def make(self, machine: Machine, args: Args, kwargs: Kwargs) -> ContextValue:
        made = super().make(machine, args, kwargs)
        chosen = made.arguments.get("backends")
        backends = chosen if isinstance(chosen, list) else [chosen]
        if not all(isinstance(one, SDPBackend) for one in backends):
            self.refuse("no backend")
        return made

    def enter(self, machine: Machine, context: ContextValue) -> object:
        chosen = context.arguments["backends"]
        backends = tuple(chosen) if isinstance(chosen, Iterable) else (chosen,)
        first = bool(context.arguments.get("set_priority", False))
        machine.notes.root.of(_Blocks).append(KernelChoice(backends, first))
        return None

    def leave(self, machine: Machine, context: ContextValue, before: object) -> None:
        machine.notes.root.of(_Blocks).pop()


_KernelRow(sdpa_kernel, "backends", "set_priority")


def is_chosen(machine: Machine) -> bool:
    """Return whether the present instruction is in such a block."""
    return bool(machine.notes.root.of(_Blocks))


def with_kernels(machine: Machine, function: AnyFunction) -> AnyFunction:
    """Return the function, with the choice of the blocks around the present instruction."""
    blocks = machine.notes.root.of(_Blocks)
    return WithKernels(function, tuple(blocks)) if blocks else function
