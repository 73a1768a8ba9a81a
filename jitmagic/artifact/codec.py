"""Writes frozen data as JSON and reads it back.

In: None, bools, numbers, strings, bytes, tuples, lists, dicts, sets, slices, torch's dtypes,
devices, layouts and operators, and frozen dataclasses of a closed vocabulary. Out: JSON, and equal
values of the same types: 0.0 and -0.0, 1 and True and nan are kept apart. Reading builds these
types only: it imports nothing, and calls no constructor but theirs.

    None, true, 3, "text"        themselves
    [...]                        a tuple
    {"$": kind, ...}             any other value; the kind of a dataclass is the name of its class
    {"#": 5}                     the value number 5 of the document's table `shared`

`special` has the writers, by type, and the readers, by kind, of further values; `Writer.other` is
asked for values of any other type. Small CPU tensors, constants of graphs, are data too.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import torch

from ..errors import CannotKeep
from ..graph.operators.operator_library import has_number
from ..torch_types import OpOverload

__all__ = ["Json", "Reader", "Writer"]

Json = Any
_DTYPES = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.dtype)
}
_LAYOUTS = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.layout)
}
_FORMATS = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.memory_format)
}
_INLINE = 1 << 16  # bytes of a tensor that is written into the document
_SEQUENCES: dict[type, str] = {list: "list", set: "set", frozenset: "frozenset", torch.Size: "size"}


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    if hasattr(kind, "_fields"):  # a named tuple
        return tuple(kind._fields)
    return tuple(field.name for field in fields(kind) if field.init)


class Writer:
    """Writes the values of one document; equal objects of the vocabulary are written once."""

    def __init__(
        self,
        vocabulary: Mapping[str, type],
        special: Mapping[type, Callable[[Any, Any], Json]] | None = None,
        shares: bool = True,
    ) -> None:
        self.shared: list[Json] = []
        self._classes = {cls: name for name, cls in vocabulary.items()}
        self._shares, self._special = shares, special or {}
        self._places: dict[int, int] = {}
        self._alive: list[object] = []  # whose ids are keys of `_places`

    def write(self, value: Any) -> Json:
        """Return the JSON of a value; raises CannotKeep if it has none."""
        kind = type(value)
        if kind in (type(None), bool, int, str):
            return value
        if kind is tuple:
            return [self.write(item) for item in value]
        if kind in self._classes or kind in self._special:
            return self._of_vocabulary(value, kind)
        return self._plain(value, kind)

    def _of_vocabulary(self, value: Any, kind: type) -> Json:
        return self.memoised(value, lambda value: self._record(value, kind))

    def memoised(self, value: Any, write: Callable[[Any], Json]) -> Json:
        """Return the place of a value in the table, after writing it if it is new."""
        if not self._shares:
            return write(value)
        place = self._places.get(id(value))
        if place is None:
            made = write(value)
            place = self._places[id(value)] = len(self.shared)
            self.shared.append(made)
            self._alive.append(value)
        return {"#": place}

    def _record(self, value: Any, kind: type) -> Json:
        if (special := self._special.get(kind)) is not None:
            return special(self, value)
        return self.record(value)

    def record(self, value: Any) -> Json:
        """Return the data of the fields of a value of the vocabulary."""
        kind: Any = type(value)
        made: dict[str, Json] = {"$": self._classes[kind]}
        for name in _field_names(kind):
            made[name] = self.write(getattr(value, name))
        return made

    def _plain(self, value: Any, kind: type) -> Json:
        if kind is float:
            return {"$": "float", "hex": value.hex() if math.isfinite(value) else repr(value)}
        if kind is complex:
            return {"$": "complex", "parts": [self.write(value.real), self.write(value.imag)]}
        if kind is bytes:
            return {"$": "bytes", "base64": base64.b64encode(value).decode()}
        if kind in _SEQUENCES:
            items = [self.write(item) for item in value]
            return {"$": _SEQUENCES[kind], "items": items}
        if kind is dict:
            pairs = [[self.write(key), self.write(item)] for key, item in value.items()]
            return {"$": "dict", "items": pairs}
        if kind is slice:
            parts = (value.start, value.stop, value.step)
            return {"$": "slice", "parts": [self.write(part) for part in parts]}
        if kind is range:
            return {"$": "range", "parts": [value.start, value.stop, value.step]}
        if kind is type(...):
            return {"$": "ellipsis"}
        return self._of_torch(value, kind)

    def _of_torch(self, value: Any, kind: type) -> Json:
        if kind is torch.dtype:
            return {"$": "dtype", "name": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"$": "device", "name": str(value)}
        if kind is torch.layout:
            return {"$": "layout", "name": str(value).removeprefix("torch.")}
        if kind is torch.memory_format:
            return {"$": "memory_format", "name": str(value).removeprefix("torch.")}
        if isinstance(value, OpOverload):
            return self.operator(value)
        if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
            return self._tensor(value)
        return self.other(value)

    def operator(self, value: OpOverload) -> Json:
        """Return the data of an operator that has the same name in each process."""
        if has_number(value):
            raise CannotKeep(f"{value}, an operator of this process")
        return {"$": "op", "name": value.name()}

    def other(self, value: Any) -> Json:
        """Return the data of a value of another type; subclasses know some."""
        raise CannotKeep(f"an object of type {type(value).__module__}.{type(value).__qualname__}")

    def _tensor(self, value: torch.Tensor) -> Json:
        if value.requires_grad or value.is_conj() or value.is_neg():
            raise CannotKeep("a tensor with a history or a view of another's bits")
        if value.nbytes > _INLINE:
            raise CannotKeep(f"a constant tensor of {value.nbytes} bytes")
        flat = value.detach().contiguous().view(-1).view(torch.uint8)
        return {
            "$": "tensor",
            "dtype": self.write(value.dtype),
            "shape": list(value.shape),
            "stride": list(value.stride()),
            "base64": base64.b64encode(bytes(flat.tolist())).decode(),
        }


class Reader:
    """Reads the values of one document. Malformed data raise CannotKeep."""

    def __init__(
        self,
        vocabulary: Mapping[str, type],
        shared: list[Json],
        special: Mapping[str, Callable[[Any, Json], Any]] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._special = special or {}
        self._shared, self._made = shared, dict[int, Any]()

    def read(self, data: Json) -> Any:
        """Return the value that was written as `data`."""
        if type(data) is list:
            return tuple([self.read(item) for item in data])
        if type(data) is not dict:
            return data
        if "#" in data:
            return self._of_table(data["#"])
        kind = str(data.get("$"))
        if (special := self._special.get(kind)) is not None:
            return special(self, data)
        if (cls := self._vocabulary.get(kind)) is not None:
            return cls(**{name: self.read(part) for name, part in data.items() if name != "$"})
        return self._plain(kind, data)

    def _of_table(self, place: int) -> Any:
        if place not in self._made:
            self._made[place] = self.read(self._shared[place])
        return self._made[place]

    def _plain(self, kind: object, data: Json) -> Any:
        match kind:
            case "float":
                text = data["hex"]
                return float.fromhex(text) if "0x" in text else float(text)
            case "complex":
                return complex(*map(self.read, data["parts"]))
            case "bytes":
                return base64.b64decode(data["base64"], validate=True)
            case "list":
                return [self.read(item) for item in data["items"]]
            case "set" | "frozenset":
                items = (self.read(item) for item in data["items"])
                return set(items) if kind == "set" else frozenset(items)
            case "size":
                return torch.Size([self.read(item) for item in data["items"]])
            case "dict":
                return {self.read(key): self.read(item) for key, item in data["items"]}
            case "slice":
                return slice(*map(self.read, data["parts"]))
            case "range":
                return range(*map(self.read, data["parts"]))
            case "ellipsis":
                return ...
        return self._of_torch(kind, data)

    def _of_torch(self, kind: object, data: Json) -> Any:
        match kind:
            case "dtype":
                return _DTYPES[data["name"]]
            case "device":
                return torch.device(data["name"])
            case "layout":
                return _LAYOUTS[data["name"]]
            case "memory_format":
                return _FORMATS[data["name"]]
            case "op":
                return operator_of(data["name"])
            case "tensor":
                return self._tensor(data)
        raise CannotKeep(f"unknown data of kind {kind!r}")

    def _tensor(self, data: Json) -> torch.Tensor:
        content = bytearray(base64.b64decode(data["base64"], validate=True))
        with torch.inference_mode(False), torch.no_grad():
            flat = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0)
            values = flat.view(self.read(data["dtype"])).view(data["shape"])
            made = torch.empty_strided(data["shape"], data["stride"], dtype=values.dtype)
            return made.copy_(values)


def operator_of(name: str) -> OpOverload:
    """Return the operator overload of a name such as `aten::add.Tensor`, if it is registered."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    if not isinstance(found, OpOverload):
        raise CannotKeep(f"no operator {name}")
    return found
