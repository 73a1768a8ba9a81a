"""Holds what a saved program reads besides the arguments of its calls.

In: tensors and other values, each with its name. Out: the objects of a loaded program. Parameters
and buffers of the module that was saved are in a tree of modules, under their names there; all
other values are globals, named by the text of their source, such as `self.parts[1]`. A file's
guards, graphs and residual functions read them at the sources that this module gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain, count
from pathlib import Path
from types import CellType
from typing import Any

import torch

from ..artifact.codec import Json, Reader
from ..artifact.guards import Mismatch
from ..bytecode import FrameSnapshot
from ..errors import ArtifactRefused, UsageError
from ..guards.constants import is_constant
from ..guards.read import read_source
from ..guards.source import Global, InstanceDict, Item, Source, describe
from ..lazy_dataclass import dataclass

__all__ = ["EMPTY", "LoadedModule", "Member", "Names", "Program", "StandIn", "read_program"]


class LoadedModule(torch.nn.Module):
    """A module, or a part of one, of a saved program: its parameters, buffers and submodules."""

    _call: Any = None

    def _set_call(self, call: Any) -> None:
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


class StandIn:
    """Stands for an object of the program to which its calls write; what they read of it is
    state.
    """


# Stand-ins for the objects that calls write to, by the name of their type.
EMPTY: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "list": list,
    "set": set,
    "cell": CellType,
    "object": StandIn,
}


_ALIGNMENT = 64  # bytes, as torch allocates memory


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter or buffer of a module: its name in the `state_dict`, and its kind."""

    name: str
    kind: str
    """"parameter", "buffer", or "temporary" for a buffer that is not persistent."""


class Names:
    """Names the values that a saved program reads, and knows the sources that a file has for them.

    owner: the source of the module, or of the object of a bound method, that is called
    module: that module, whose members have their names there
    """

    def __init__(self, owner: Source | None, module: torch.nn.Module | None) -> None:
        self.owner = owner
        self._members: dict[int, list[Member]] = {}
        self._tables: dict[int, Source] = {}
        self._objects: dict[int, tuple[object, Global]] = {}
        self._globals: dict[Source, str] = {}
        if owner is not None and module is not None:
            self._add(owner, module)

    def _add(self, owner: Source, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._members.setdefault(id(parameter), []).append(Member(name, "parameter"))
        for prefix, part in module.named_modules(remove_duplicate=False):
            parts = prefix.split(".") if prefix else []
            for name, table in (("_parameters", part._parameters), ("_buffers", part._buffers)):
                self._tables.setdefault(id(table), _table(owner, parts, name))
            for name, buffer in part._buffers.items():
                kind = "temporary" if name in part._non_persistent_buffers_set else "buffer"
                member = Member(".".join((*parts, name)), kind)
                self._members.setdefault(id(buffer), []).append(member)

    def members(self, tensor: torch.Tensor) -> list[Member]:
        """Return the members that a tensor is."""
        return self._members.get(id(tensor), [])

    def source_of(self, source: Source, value: object, snapshot: FrameSnapshot) -> Source:
        """Return the source in a file of the value that the program has at a source.

        A member that the program finds elsewhere too, such as in a list, is a global there: it
        stays in the list when a call assigns another tensor to the member.
        """
        if isinstance(value, torch.Tensor) and self.members(value):
            for part in source.path():
                table = read_source(part, snapshot)
                if (place := self._tables.get(id(table))) is not None:
                    names = [name for name, one in table.items() if one is value]
                    own = isinstance(source, Item) and source.base == part and source.key in names
                    return Item(place, source.key if own else names[0])  # type: ignore[attr-defined]
        if (place := self._tables.get(id(value))) is not None:
            return place
        if isinstance(value, torch.Tensor) or is_constant(value):
            return Global(self.global_name(source))
        if id(value) not in self._objects:  # which has one name, wherever the program finds it
            self._objects[id(value)] = (value, Global(self.global_name(source)))
        return self._objects[id(value)][1]

    def has_table(self, value: object) -> bool:
        """Return whether an object is a table of the module's members."""
        return id(value) in self._tables

    def global_name(self, source: Source) -> str:
        """Return the name in a file of a value that is no member: its source, as text."""
        if source not in self._globals:
            text, taken = describe(source), {*self._globals.values()}
            numbered = (f"{text} ({n})" for n in count(2))
            name = next(one for one in chain([text], numbered) if one not in taken)
            self._globals[source] = name
        return self._globals[source]


def _table(owner: Source, parts: list[str], table: str) -> Source:
    """Return the source of a table of the module at a path of names from the owner."""
    for part in parts:
        owner = Item(Item(InstanceDict(owner), "_modules"), part)
    return Item(InstanceDict(owner), table)


class Program:
    """The values of a loaded program: `module` has the members, `globals` the others."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {"__builtins__": {}}
        self.module = LoadedModule()

    def put_member(self, member: Member, tensor: torch.Tensor) -> None:
        """Set a parameter or buffer. Raises KeyError for a name that no module can have."""
        *owners, name = member.name.split(".")
        at: torch.nn.Module = self.module
        for owner in owners:
            if owner not in at._modules:
                at.add_module(owner, LoadedModule())
            at = at._modules[owner]  # type: ignore[assignment]
        if member.kind == "parameter":
            at.register_parameter(name, tensor)  # type: ignore[arg-type]
        else:
            at.register_buffer(name, tensor, persistent=member.kind == "buffer")

    def put_in_slot(self, slot: dict[str, Json], value: Any) -> None:
        """Set an entry, an attribute or the content of a cell that calls read and write."""
        owner = self.globals[slot["owner"]]
        if slot["kind"] == "cell":
            owner.cell_contents = value
        else:
            table = vars(owner) if slot["kind"] == "attribute" else owner
            table[slot["key"]] = value


# ----------------------------------------------------------------------------------------- reading


def read_program(
    path: str | Path,
    document: Mapping[str, Json],
    files: Mapping[str, memoryview],
    weights: Mapping[str, torch.Tensor],
    reader: Reader,
) -> Program:
    """Return the program of a file. `weights`: the values of tensors by name, instead of those in
    the file. Raises ArtifactRefused.
    """
    program = Program()
    for name, kind in document["written"].items():
        program.globals[name] = EMPTY[kind]()
    for name, value in document["objects"].items():
        try:
            program.globals[name] = reader.read(value)
        except Mismatch as error:
            module = value["to"]["path"][0]
            raise ArtifactRefused(path, str(error), f"import {module} first") from error
    for described in document["tensors"]:
        members = [Member(name, kind) for name, kind in described["members"]]
        slots = described["slots"]
        places = (*(one.name for one in members), *(one["name"] for one in slots))
        names = [*places, *described["globals"]]
        tensor = _tensor(path, names, described, files, weights, reader)
        for slot in slots:
            program.put_in_slot(slot, tensor)
        for member in members:
            program.put_member(member, tensor)
        for name in described["globals"]:
            program.globals[name] = tensor
    for slot in document["numbers"]:
        program.put_in_slot(slot, reader.read(slot["value"]))
    return program


def _tensor(
    path: str | Path,
    names: list[str],
    described: dict[str, Any],
    files: Mapping[str, memoryview],
    weights: Mapping[str, torch.Tensor],
    reader: Reader,
) -> torch.Tensor:
    """Return a tensor of the program: its value in the file, or the one that the caller gives."""
    dtype, shape = reader.read(described["dtype"]), described["shape"]
    given = next((weights[name].detach() for name in names if name in weights), None)
    values = _stored(path, names[0], described, files, dtype) if given is None else given
    if values.dtype != dtype or values.numel() != math.prod(shape):
        raise ArtifactRefused(
            path, f"{names[0]} is {values.dtype} {list(values.shape)}, was {dtype} {shape}"
        )
    values, stride = values.reshape(shape), tuple(described["stride"])
    device = torch.device(described["device"])
    # The values in the file are used where they are, if their layout and place in memory allow it.
    is_laid_out = values.stride() == stride and values.data_ptr() % _ALIGNMENT == 0
    if given is not None or not is_laid_out or device.type != "cpu":
        values = torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(values)
    if described["is_parameter"]:
        return torch.nn.Parameter(values, requires_grad=described["requires_grad"])
    return values.requires_grad_(described["requires_grad"])


def _stored(
    path: str | Path,
    name: str,
    described: dict[str, Any],
    files: Mapping[str, memoryview],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of a tensor in the file."""
    if described["file"] is None:
        hint = f"load(path, weights=...) with {name!r}"
        raise ArtifactRefused(path, f"it has no values for {name}", hint)
    data = files[described["file"]]
    if not data:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype)
