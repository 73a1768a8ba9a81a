"""Calls of attention in a `with sdpa_kernel(...)` block, which chooses among torch's kernels.

The choice is a state of the process. `WithKernels` is the target of a node in such a block: it sets
the state around the call, whether that runs on meta, traced or real tensors.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction

__all__ = ["KernelChoice", "WithKernels"]


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The arguments of one `sdpa_kernel` call."""

    backends: tuple[SDPBackend, ...]
    set_priority: bool


class WithKernels:
    """Calls a function of torch that computes attention, within blocks, the outermost first."""

    __module__ = __name__  # by the function's module, fx would write a call of the function itself

    def __init__(self, function: AnyFunction, blocks: tuple[KernelChoice, ...]) -> None:
        self.__name__ = function.__name__  # facts about torch's functions are found by it
        self.function, self.blocks = function, blocks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for block in self.blocks:
                chosen = sdpa_kernel(list(block.backends), set_priority=block.set_priority)
                stack.enter_context(chosen)
            return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return self.__name__
