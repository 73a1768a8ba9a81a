"""lightning: a callback that compiles the networks of a LightningModule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from ..api import jit

__all__ = ["JitCallback"]


class JitCallback(Callback):
    """Compile the networks in place when a Trainer sets the module up.

        trainer = Trainer(callbacks=[JitCallback()])

    These are the module's children that have parameters, or itself where it has no such child.
    `training_step` stays Python's: it logs, which a graph cannot hold. Takes the keywords of
    `jitmagic.jit`.
    """

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tag the networks; they are compiled at their first batch."""
        for network in list(_networks(pl_module)) or [pl_module]:
            jit(network, **self._keywords)


def _networks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules below `module` that can be called and have parameters."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _networks(child)
        elif any(True for _ in child.parameters()):
            yield child
