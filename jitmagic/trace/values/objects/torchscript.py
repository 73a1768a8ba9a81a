"""Models functions that torch.jit.script or torch.jit.trace compiled from Python functions.

Input: a live ScriptFunction, guarded by identity. Output: inlined calls of the original function,
which torch stores for torch.compile in `_torchdynamo_inline`. Without it a call breaks the graph.
"""

from __future__ import annotations

import types

import torch

from ....guards.source import InstanceDict, Item
from ...breaks import GraphBreak, RefusedTorchCall
from ...builtins.pytorch.torch_rules import REFUSED_MODULES
from ...wrap import by_identity, wraps
from ..base import Args, Kwargs, Machine, Value
from .identity import IdentityValue

__all__: list[str] = []

_ORIGINAL = "_torchdynamo_inline"


class ScriptedValue(IdentityValue):
    """A torch.jit.ScriptFunction."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # torch.jit.script and torch.jit.trace set it; a function of a CompilationUnit lacks it.
        original = vars(self.live).get(_ORIGINAL)
        if not isinstance(original, types.FunctionType):
            why = REFUSED_MODULES["torch.jit"]
            raise GraphBreak(RefusedTorchCall.of(name=self.describe(), why=why))
        assert self.source is not None
        function = machine.wrap(original, Item(InstanceDict(self.source), _ORIGINAL))
        return function.call(machine, args, kwargs)

    def describe(self) -> str:
        return f"the scripted {self.live.name}()"


wraps(torch.jit.ScriptFunction)(by_identity(ScriptedValue))
