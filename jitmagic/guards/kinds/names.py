"""Rows for guards on names in classes, namespaces and globals."""

from __future__ import annotations

import types

from ...bytecode import FrameSnapshot
from ..constants import exact_name, same_constant
from ..guard import ClassFact, ClassFacts, GlobalMissing, NameFact, NamespaceFacts
from ..source import Builtin, Global, Source, describe
from ..words import class_name, difference, few, short
from .row import Kind, Registers, Step, row

__all__: list[str] = []

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

_of_class = type.__getattribute__  # bypasses user-defined metaclasses


@row(ClassFacts, rank=2)
class _ClassFacts(Kind[ClassFacts]):
    def lower(self, guard: ClassFacts, registers: Registers) -> tuple[Step, ...]:
        return (("CLASS", guard.cls, guard.mro, tuple(map(_class_step, guard.facts))),)

    def differs(self, guard: ClassFacts, frame: FrameSnapshot) -> str | None:
        cls = guard.cls
        if not issubclass(type(cls), type):
            return "a class is gone"
        now, before = _of_class(cls, "__mro__"), guard.mro
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            return f"{class_name(cls)} inherits from {_bases(now)}, did from {_bases(before)}"
        differences = (_fact_differs(cls, fact) for fact in guard.facts)
        return next((found for found in differences if found is not None), None)

    def show(self, guard: ClassFacts) -> str:
        """Return `Net: same bases; same forward; no __len__, fc1; no property size`."""
        parts = ["same bases"]
        for kinds, words in (
            (("is", "slot"), "same"),
            (("absent",), "no"),
            (("yields",), "no property"),
        ):
            names = list(dict.fromkeys(fact.name for fact in guard.facts if fact.kind in kinds))
            if names:
                parts.append(f"{words} {few(names)}")
        return f"class {short(guard.cls)}: {'; '.join(parts)}"


@row(NamespaceFacts, rank=2)
class _NamespaceFacts(Kind[NamespaceFacts]):
    def lower(self, guard: NamespaceFacts, registers: Registers) -> tuple[Step, ...]:
        return (("NAMESPACE", guard.table, tuple(map(_name_step, guard.facts))),)

    def differs(self, guard: NamespaceFacts, frame: FrameSnapshot) -> str | None:
        differences = (_name_differs(guard.table, fact) for fact in guard.facts)
        return next(filter(None, differences), None)

    def show(self, guard: NamespaceFacts) -> str:
        words = [f"no {fact.name}" if fact.absent else str(fact.name) for fact in guard.facts]
        return f"{guard.table.get('__name__', 'a namespace')}: same {few(words)}"


@row(GlobalMissing, rank=4)
class _GlobalMissing(Kind[GlobalMissing]):
    def sources(self, guard: GlobalMissing) -> tuple[Source, ...]:
        return (guard.source,)

    def lower(self, guard: GlobalMissing, registers: Registers) -> tuple[Step, ...]:
        assert isinstance(guard.source, Global | Builtin)
        is_global = isinstance(guard.source, Global)
        table = registers.namespace if is_global else registers.builtins
        return (("NAMESPACE_ABSENT", table, guard.source.name),)

    def differs(self, guard: GlobalMissing, frame: FrameSnapshot) -> str | None:
        is_builtin = isinstance(guard.source, Builtin)
        table, kind = (frame.builtins, "builtin") if is_builtin else (frame.globals, "global")
        name = describe(guard.source)
        return f"there is a {kind} {name} now" if name in table else None

    def show(self, guard: GlobalMissing) -> str:
        kind = "builtin" if isinstance(guard.source, Builtin) else "global"
        return f"no {kind} {describe(guard.source)}"

    def advise(self, guard: GlobalMissing, frame: FrameSnapshot) -> str:
        return f"define {describe(guard.source)} before the first call"


def _class_step(fact: ClassFact) -> Step:
    match fact.kind:
        case "is":
            return ("IS", exact_name(fact.name), fact.start, fact.value)
        case "absent":
            return ("ABSENT", exact_name(fact.name), fact.start)
    return (fact.kind.upper(), exact_name(fact.name))


def _name_step(fact: NameFact) -> Step:
    name = exact_name(fact.name) if isinstance(fact.name, str) else fact.name
    return ("ABSENT", name) if fact.absent else ("IS", name, fact.value)


# ------------------------------------------------------------------------------------- what differs


def _name_differs(table: dict[object, object], fact: NameFact) -> str | None:
    where = table.get("__name__")
    name = f"{where}.{fact.name}" if isinstance(where, str) else str(fact.name)
    if fact.name not in table:
        return None if fact.absent else f"{name} no longer exists"
    if fact.absent:
        return f"there is a {name} now"
    return None if same_constant(table[fact.name], fact.value) else f"{name} was replaced"


def _fact_differs(cls: type, fact: ClassFact) -> str | None:
    bases = _of_class(cls, "__mro__")[fact.start :]
    owners = [base for base in bases if fact.name in _of_class(base, "__dict__")]
    name = f"{class_name(owners[0] if owners else cls)}.{fact.name}"
    if not owners:
        return f"{name} no longer exists" if fact.kind in ("is", "slot") else None
    found = _of_class(owners[0], "__dict__")[fact.name]
    if fact.kind == "is":
        now, before = short(found), short(fact.value)
        before = before if now != before else f"another {type(fact.value).__name__}"
        return difference(name, now, before, found is fact.value)
    if fact.kind == "slot":
        slot = type(found) is types.MemberDescriptorType and found.__name__ == fact.name
        return None if slot else f"{name} is {short(found)}, was a slot"
    if fact.kind == "yields" and _yields(type(found)):
        return None
    return f"there is a {name} now: {short(found)}"


def _yields(kind: type) -> bool:
    """Return whether instance attributes always override class attributes of this type."""
    sets = any(name in vars(base) for base in kind.__mro__ for name in ("__set__", "__delete__"))
    return bool(kind.__flags__ & _IMMUTABLE) and not sets


def _bases(mro: tuple[object, ...]) -> str:
    return ", ".join(map(short, mro[1:-1])) or "object alone"
