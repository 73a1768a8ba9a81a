"""Writes the tensors and other values that a saved program reads; program.py reads them.

In: what `lift` has found in each call. Out: JSON, and the bytes of each tensor as a file. A tensor
is written once, with all its names, so that what one call writes to it another call reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..artifact.codec import Json, Writer
from ..devices import counted_device
from ..errors import CannotKeep
from ..guards.source import Global
from .lifting import Lifted, check_writes
from .program import EMPTY, Names
from .state import Slot, State

__all__ = ["ProgramValues"]


class ProgramValues:
    """The values under construction, over all calls of a file."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._tensors: dict[int, tuple[torch.Tensor, dict[str, None]]] = {}
        self._others: dict[str, Any] = {}
        self._targets: dict[str, type] = {}
        self._mutated: set[int] = set()  # ids of tensors
        self._calls: list[Lifted] = []
        self._slots: list[Slot] = []

    def add(self, lifted: Lifted) -> None:
        """Add the values that one call reads."""
        self._calls.append(lifted)
        for source, value in lifted.values.items():
            at = lifted.renamed[source]
            if isinstance(value, torch.Tensor):
                names = self._tensors.setdefault(id(value), (value, {}))[1]
                if isinstance(at, Global):
                    names[at.name] = None
            elif isinstance(at, Global):
                self._others[at.name] = value
        self._mutated |= lifted.mutated
        for source, kind in lifted.targets.items():
            at = lifted.renamed[source]
            assert isinstance(at, Global)
            self._targets[at.name] = kind

    def add_state(self, state: State) -> None:
        """Add what calls read and write."""
        for slot in state.slots():
            if isinstance(slot.value, torch.Tensor):
                self._tensors.setdefault(id(slot.value), (slot.value, {}))
            if isinstance(slot.owner, Global):
                self._slots.append(slot)

    def data(self, writer: Writer, weights: bool) -> tuple[dict[str, Json], dict[str, bytes]]:
        """Return the parts of artifact.json, and the files."""
        self._check_memory()
        self._check_contents()
        check_writes(self._calls)
        files, described = dict[str, bytes](), []
        for number, (tensor, names) in enumerate(self._tensors.values()):
            file = f"tensors/{number}"
            if weights:
                files[file] = _bytes_of(tensor)
            members = [[one.name, one.kind] for one in self._names.members(tensor)]
            slots = [_slot_data(one) for one in self._slots if one.value is tensor]
            described.append({
                "members": members, "slots": slots, "globals": [*names],
                "file": file if weights else None,
                "dtype": writer.write(tensor.dtype), "shape": list(tensor.shape),
                "stride": list(tensor.stride()), "device": str(counted_device(tensor.device)),
                "requires_grad": tensor.requires_grad,
                "is_parameter": isinstance(tensor, torch.nn.Parameter),
            })  # fmt: skip
        kinds = {name: kind.__name__ if kind.__name__ in EMPTY else "object"
                 for name, kind in self._targets.items()}  # fmt: skip
        numbers = [
            {**_slot_data(one), "value": writer.write(one.value)}
            for one in self._slots
            if not isinstance(one.value, torch.Tensor)
        ]
        others = {name: writer.write(value) for name, value in self._others.items()}
        parts = {"tensors": described, "objects": others, "written": kinds, "numbers": numbers}
        return parts, files

    def _check_contents(self) -> None:
        """Raise CannotKeep for an object in the file that holds what calls write to: the file has
        that by itself.
        """
        written = {id(write.target) for call in self._calls for write in call.writes}
        for name, value in self._others.items():
            for part in _parts(value):
                if id(part) in written or id(part) in self._mutated:
                    raise CannotKeep(f"{name}, which holds what the program writes to")

    def _check_memory(self) -> None:
        """Raise CannotKeep for a write to a tensor that shares its memory with another one."""
        owners: dict[int, list[int]] = {}
        for key, (tensor, _) in self._tensors.items():
            owners.setdefault(tensor.untyped_storage()._cdata, []).append(key)
        for keys in owners.values():
            if len(keys) > 1 and not self._mutated.isdisjoint(keys):
                shapes = " and ".join(str(list(self._tensors[key][0].shape)) for key in keys)
                raise CannotKeep(f"a write to one of the program's tensors {shapes}, "
                                 "which share memory: a file has each by itself")  # fmt: skip


def _parts(value: Any) -> Iterator[Any]:
    """Yield what a container of the program holds, and what that holds."""
    held = value.values() if isinstance(value, dict) else value
    for part in held if isinstance(value, dict | list | tuple | set) else ():
        yield part
        yield from _parts(part)


def _slot_data(slot: Slot) -> Json:
    """Return where a value of the state is."""
    assert isinstance(slot.owner, Global)
    return {"owner": slot.owner.name, "key": slot.key, "kind": slot.kind, "name": slot.name}


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor in row-major order."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
