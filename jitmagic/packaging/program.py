"""Builds objects that stand for those of a program, in which a loaded graph finds its tensors.

In: for each tensor that is no argument, the source at which the program had it, such as
`self.layers[0].weight`, `scale` (a global), the contents of a closure's cell. Out: a module tree
with that parameter, a dictionary of globals, cells: reading the source there gives the tensor, as
it did in the program. Guards, residual functions and `state_dict` work on them unchanged.
"""

from __future__ import annotations

from types import CellType
from typing import Any

import torch

from ..errors import CannotKeep, UsageError
from ..guards.source import Argument, CellContents, Global, InstanceDict, Item, Source, describe

__all__ = ["LoadedModule", "Program"]

_TABLES = ("_parameters", "_buffers", "_modules")


class LoadedModule(torch.nn.Module):
    """A module, or a part of one, of a saved program: its parameters, buffers and submodules."""

    _call: Any = None

    def set_call(self, call: Any) -> None:
        """Set the function that calls of the module run; submodules have none."""
        self.__dict__["_call"] = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled call."""
        if self._call is None:
            raise UsageError("a part of a loaded module has tensors only: call the module")
        return self._call(*args, **kwargs)

    def extra_repr(self) -> str:
        """Return the shapes of its own tensors."""
        own = (*self._parameters.items(), *self._buffers.items())
        return ", ".join(f"{name}: {list(one.shape)}" for name, one in own if one is not None)


class Program:
    """The objects. `arguments`: the values of arguments that are no user's, `self` and cells."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {"__builtins__": {}}
        self.arguments: dict[int, Any] = {}

    def put(self, source: Source, tensor: Any) -> None:
        """Make `source` lead to a tensor. Raises CannotKeep for a source of another kind."""
        match source:
            case Item(base, key):
                self._container(base, key)[key] = tensor
            case CellContents(Argument(index)):
                self.arguments.setdefault(index, CellType()).cell_contents = tensor
            case Global(name):
                self.globals[name] = tensor
            case _:
                raise CannotKeep(f"{describe(source)}, at a place that a file does not have")

    def _object(self, source: Source) -> Any:
        """Return the object at a source that has parts, made if there is none."""
        match source:
            case Argument(index):
                return self.arguments.setdefault(index, LoadedModule())
            case CellContents(Argument(index)):
                cell = self.arguments.setdefault(index, CellType())
                if not _has_contents(cell):
                    cell.cell_contents = LoadedModule()
                return cell.cell_contents
            case Global(name):
                return self.globals.setdefault(name, LoadedModule())
            case Item(base, key):
                table = self._container(base, key)
                return table.setdefault(key, LoadedModule())
        raise CannotKeep(f"{describe(source)}, an object that a file does not have")

    def _container(self, source: Source, key: object) -> dict[Any, Any]:
        """Return the dictionary at a source."""
        match source:
            case InstanceDict(base):
                own: dict[Any, Any] = vars(self._object(base))
                return own
            case Item(InstanceDict(base), str(name)) if name in _TABLES:
                found: dict[Any, Any] = vars(self._object(base))[name]
                return found
            case Item(base, name) if isinstance(key, str | int):
                table: dict[Any, Any] = self._container(base, name).setdefault(name, {})
                return table
            case Global(name):
                held: dict[Any, Any] = self.globals.setdefault(name, {})
                return held
        raise CannotKeep(f"{describe(source)}, an object that a file does not have")


def _has_contents(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
