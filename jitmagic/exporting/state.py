"""Names the tensors that a program reads and that are no arguments.

In: the exported function or module, and a tensor with its source. Out: its kind and its name in an
exported program: parameters and buffers of the module by their paths in it (a tied weight by the
first), other tensors by where the program finds them.
"""

from __future__ import annotations

import re
from functools import partial
from types import MethodType
from typing import Any

import torch

from ..compat.export import InputKind
from ..errors import UsageError
from ..guards.source import Item, Source
from ..lazy_dataclass import dataclass, replace
from .call import clean_name

__all__ = ["Held", "State"]

# The part of a path that leads through the function itself.
_FUNCTION = re.compile(
    r"(func\.)*(__closure__\[(?P<cell>\d+)\]|__\w+__\[['\"]?(?P<entry>\w+)['\"]?\]|keywords|__self__\.)"
)
_PREFIX = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.CONSTANT_TENSOR: "c_"}


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of the program: `is_persistent` says for a buffer whether it is saved."""

    kind: Any
    name: str
    is_persistent: bool | None = None

    @property
    def placeholder(self) -> str:
        """The name of its input."""
        return _PREFIX[self.kind] + clean_name(self.name)


class State:
    """The state of an exported program: `tensors` is its state_dict."""

    def __init__(self, target: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self._known: dict[int, Held] = {}
        function = target.func if isinstance(target, partial) else target
        self._variables = getattr(getattr(function, "__code__", None), "co_freevars", ())
        owner = target.__self__ if isinstance(target, MethodType) else target
        if isinstance(owner, torch.nn.Module):
            self._add_module(owner)

    def _add_module(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._known.setdefault(id(parameter), Held(InputKind.PARAMETER, name))
            self.tensors[name] = parameter
        skipped = {
            f"{path}.{name}" if path else name
            for path, one in module.named_modules(remove_duplicate=False)
            for name in one._non_persistent_buffers_set
        }
        for name, buffer in module.named_buffers(remove_duplicate=False):
            is_persistent = name not in skipped
            self._known.setdefault(id(buffer), Held(InputKind.BUFFER, name, is_persistent))
            (self.tensors if is_persistent else self.constants)[name] = buffer

    def input_of(self, tensor: torch.Tensor, source: Source) -> Held:
        """Return the kind and name of a tensor that the program finds at a source."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = self._found(tensor, source)
        return self._known[id(tensor)]

    def _found(self, tensor: torch.Tensor, source: Source) -> Held:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise UsageError(f"{source.describe()} is a {type(tensor).__name__}, no plain tensor")
        name = self._free_name(source.describe())
        if isinstance(tensor, torch.nn.Parameter):
            self.tensors[name] = tensor
            return Held(InputKind.PARAMETER, name)
        if isinstance(source, Item) and isinstance(source.base, Item) and (
            source.base.key == "_buffers"
        ):  # fmt: skip
            self.tensors[name] = tensor
            return Held(InputKind.BUFFER, name, True)
        self.constants[name] = tensor
        return Held(InputKind.CONSTANT_TENSOR, name)

    def _free_name(self, text: str) -> str:
        """Return the path of a tensor as a name that is not taken."""
        text = text.removeprefix("target.")
        if (through := _FUNCTION.match(text)) is not None:
            name = self._variables[int(through["cell"])] if through["cell"] else through["entry"]
            text = (name or "") + text[through.end() :]
        parts = [clean_name(part).strip("_") for part in text.split(".")]
        name = base = ".".join(part for part in parts if part) or "tensor"
        count = 0
        while name in self.tensors or name in self.constants:
            count += 1
            name = f"{base}_{count}"
        return name

    def as_buffer(self, held: Held) -> Held:
        """Return a tensor that the program writes to as a buffer, unless it is a parameter."""
        if held.kind is not InputKind.CONSTANT_TENSOR:
            return held
        self.tensors[held.name] = self.constants.pop(held.name)
        return replace(held, kind=InputKind.BUFFER, is_persistent=True)

    def lifted(self, tensor: torch.Tensor) -> Held:
        """Return the kind and name of a constant of the graph itself."""
        name = self._free_name("lifted_tensor_0")
        self.constants[name] = tensor
        return Held(InputKind.CONSTANT_TENSOR, name)
