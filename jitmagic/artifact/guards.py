"""Writes guards and sources as data, and binds them to the objects of a frame.

In: the guards of a trace. Out: JSON (codec.py), in which each live object that a guard compares
with is replaced by what it is (`references.facts_of`): the code of a function, the name of a class
or of a module. Reading takes a frame: it follows the guard's own path to the object that is there
now, checks that it is what it was, and makes the guard for that object. A path that leads to
another kind of object raises Mismatch: the entry is for other calls, or its program has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..errors import CannotKeep
from ..guards.constants import is_constant, same_constant
from ..guards.guard import (
    ANY_KEY,
    ClassFact,
    ClassFacts,
    Guard,
    IdentityIs,
    NameFact,
    NamespaceFacts,
    TensorKind,
    TypeIs,
    ValueEquals,
)
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Source
from ..guards.weak_fields import weakly
from ..torch_types import OpOverload
from .codec import Json, Reader, Writer
from .references import facts_of, find, module_of_namespace, path_of

__all__ = ["FrameReader", "FrameWriter", "Mismatch", "listed", "refer", "resolve"]

_GLOBALS, _BUILTINS = "$globals", "$builtins"
_MRO, _NAMES = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
_SINGLETONS = (torch.dtype, torch.layout, torch.memory_format, OpOverload)


class Mismatch(LookupError):
    """The frame has another object at a path than the entry was compiled for."""


class FrameWriter(Writer):
    """Writes the guards of one entry, whose globals and builtins are not named by a module."""

    def __init__(
        self,
        vocabulary: Mapping[str, type],
        snapshot: FrameSnapshot,
        guards: Iterable[Guard],
        special: Mapping[type, Callable[[Any, Any], Json]],
    ) -> None:
        super().__init__(vocabulary, {**_WRITERS, **special})
        self._namespaces = {id(snapshot.globals): _GLOBALS, id(snapshot.builtins): _BUILTINS}
        # Classes without a name in a module are found again as the type of an object.
        self._classes_at: dict[int, Json] = {}
        for guard in guards:
            if isinstance(guard, TypeIs):
                self._classes_at.setdefault(id(guard.value), ("type", guard.source))
            elif isinstance(guard, IdentityIs) and isinstance(guard.value, type):
                self._classes_at.setdefault(id(guard.value), ("object", guard.source))

    def other(self, value: Any) -> Json:
        """Return the data of an object that a module names."""
        return {"$": "ref", "to": refer(value)}

    def class_data(self, cls: type) -> Json:
        """Return where the class of a guard on its attributes is found."""
        if (found := self._classes_at.get(id(cls))) is None:
            return refer(cls)
        of, source = found
        return {"at": of, "source": self.write(source), "is": listed(facts_of(cls))}

    def own_namespace(self, value: Any) -> str | None:
        """Return the name of the globals or builtins of the frame, None for another object. They
        are compared as such: functions that a pickle brings have globals of no module.
        """
        return self._namespaces.get(id(value))

    def table_data(self, table: dict[Any, Any]) -> str:
        """Return the name of a namespace of the process."""
        name = self.own_namespace(table) or module_of_namespace(table)
        if name is None:
            raise CannotKeep("a namespace of no module")
        return name


class FrameReader(Reader):
    """Reads guards, and binds them to the objects of a frame."""

    def __init__(
        self,
        vocabulary: Mapping[str, type],
        shared: list[Json],
        snapshot: FrameSnapshot,
        special: Mapping[str, Callable[[Any, Json], Any]],
    ) -> None:
        super().__init__(vocabulary, shared, {**_READERS, **special})
        self.snapshot: FrameSnapshot | None = snapshot  # dropped once the guards are read

    def object_at(self, source: Source) -> Any:
        """Return the object at a source now."""
        if self.snapshot is None:
            raise Mismatch("only guards may read the frame")
        try:
            return read_source(source, self.snapshot)
        except UNREADABLE as error:
            raise Mismatch(str(error)) from None

    def class_of(self, data: Json) -> Any:
        """Return the class that `class_data` has written."""
        if "path" in data:
            return resolve(data)
        live = self.object_at(self.read(data["source"]))
        return _checked(type(live) if data["at"] == "type" else live, data["is"])

    def table_of(self, name: str) -> dict[Any, Any]:
        """Return the namespace that `table_data` has named."""
        if name in (_GLOBALS, _BUILTINS):
            if self.snapshot is None:
                raise Mismatch("only guards may read the frame")
            return self.snapshot.globals if name == _GLOBALS else self.snapshot.builtins
        try:
            return vars(sys.modules[name])
        except KeyError:
            raise Mismatch(f"{name} is not imported") from None


# ------------------------------------------------------------------------- objects named by a path


def refer(value: Any) -> Json:
    """Return the data of an object that a module names: its path, and what it is."""
    return {"path": list(path_of(value)), "is": listed(facts_of(value))}


def resolve(data: Json) -> Any:
    """Return the object at a path; raises Mismatch if it is another one than it was."""
    try:
        found = find(tuple(data["path"]))
    except LookupError:
        raise Mismatch(f"there is no {'.'.join(data['path'])}") from None
    return _checked(found, data["is"])


def _checked(found: Any, facts: Json) -> Any:
    try:
        now = listed(facts_of(found))
    except CannotKeep as error:
        raise Mismatch(str(error)) from None
    if now != facts:
        raise Mismatch(f"{now} is not {facts}")
    return found


def listed(facts: Any) -> Json:
    """Return facts as JSON has them: lists in place of tuples."""
    return [listed(part) for part in facts] if type(facts) is tuple else facts


# ------------------------------------------------------------------- objects that a guard compares


def _write_held(writer: FrameWriter, value: Any) -> Json:
    """Return the data of an object that the guard finds by its own path."""
    if is_constant(value) or isinstance(value, _SINGLETONS):
        return {"equals": writer.write(value)}
    if (name := writer.own_namespace(value)) is not None:
        return {"own": name}
    return {"is": listed(facts_of(value))}


def _read_held(reader: FrameReader, data: Json, live: Any) -> Any:
    """Return the object that is there now, if it is what it was."""
    if "is" in data:
        return _checked(live, data["is"])
    if "own" in data:
        if live is not reader.table_of(data["own"]):
            raise Mismatch("a function has other globals than the frame")
        return live
    value = reader.read(data["equals"])
    if value is not live and not same_constant(value, live):
        raise Mismatch(f"{live!r} is not {value!r}")
    return live


def _write_at_source(writer: FrameWriter, guard: Any) -> Json:
    """Return the data of a guard that compares the object at its source, or its type."""
    more = {"keys": guard.keys, "dual": guard.dual} if isinstance(guard, TensorKind) else {}
    return {
        "$": type(guard).__name__,
        "where": writer.write(guard.where),
        "source": writer.write(guard.source),
        "held": _write_held(writer, guard.value),
        **more,
    }


def _read_at_source(reader: FrameReader, data: Json) -> Guard:
    cls: Any = _AT_SOURCE[data["$"]]
    source = reader.read(data["source"])
    live = reader.object_at(source)
    held = _read_held(reader, data["held"], type(live) if cls in (TypeIs, TensorKind) else live)
    more = (data["keys"], data["dual"]) if cls is TensorKind else ()
    made: Guard = cls(source, held, *more, where=reader.read(data["where"]))
    return made


def _write_class(writer: FrameWriter, guard: ClassFacts) -> Json:
    cls = guard.cls
    facts = [
        [fact.kind, fact.name, fact.start, *_held_of_fact(writer, fact)] for fact in guard.facts
    ]
    mro = [listed(facts_of(base)) for base in guard.mro]
    where = writer.write(guard.where)
    return {"$": "ClassFacts", "where": where, "cls": writer.class_data(cls), "mro": mro,
            "facts": facts}  # fmt: skip


def _held_of_fact(writer: FrameWriter, fact: ClassFact) -> list[Json]:
    return [_write_held(writer, fact.value)] if fact.kind == "is" else []


def _read_class(reader: FrameReader, data: Json) -> ClassFacts:
    cls = reader.class_of(data["cls"])
    mro = _MRO(cls)
    if [listed(facts_of(base)) for base in mro] != data["mro"]:
        raise Mismatch(f"{cls.__qualname__} has other bases")
    facts = []
    for kind, name, start, *held in data["facts"]:
        live = _read_held(reader, held[0], _attribute(mro, name, start)) if held else None
        facts.append(ClassFact(kind, name, start, live))
    where = reader.read(data["where"])
    return ClassFacts(weakly(cls), tuple(map(weakly, mro)), tuple(facts), where=where)


def _attribute(mro: tuple[type, ...], name: str, start: int) -> Any:
    for base in mro[start:]:
        if name in (names := _NAMES(base)):
            return names[name]
    raise Mismatch(f"no attribute {name}")


def _write_names(writer: FrameWriter, guard: NamespaceFacts) -> Json:
    facts = [
        [writer.write(fact.name), None if fact.absent else _write_held(writer, fact.value)]
        for fact in guard.facts
    ]
    where, table = writer.write(guard.where), writer.table_data(guard.table)
    return {"$": "NamespaceFacts", "where": where, "table": table, "facts": facts}


def _read_names(reader: FrameReader, data: Json) -> NamespaceFacts:
    table = reader.table_of(data["table"])
    facts = []
    for written, held in data["facts"]:
        name = reader.read(written)
        if held is None:
            facts.append(NameFact(name, absent=True))
        elif name in table:
            facts.append(NameFact(name, _read_held(reader, held, table[name])))
        else:
            raise Mismatch(f"there is no {name}")
    return NamespaceFacts(table, tuple(facts), where=reader.read(data["where"]))


_AT_SOURCE = {cls.__name__: cls for cls in (TypeIs, TensorKind, IdentityIs, ValueEquals)}
_WRITERS: Mapping[type, Callable[[Any, Any], Json]] = {
    **dict.fromkeys(_AT_SOURCE.values(), _write_at_source),
    ClassFacts: _write_class,
    NamespaceFacts: _write_names,
    type(ANY_KEY): lambda writer, value: {"$": "any key"},
}
_READERS: Mapping[str, Callable[[Any, Json], Any]] = {
    **dict.fromkeys(_AT_SOURCE, _read_at_source),
    "ClassFacts": _read_class,
    "NamespaceFacts": _read_names,
    "ref": lambda reader, data: resolve(data["to"]),
    "any key": lambda reader, data: ANY_KEY,
}
