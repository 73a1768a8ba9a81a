"""Rows for guards on lists, dicts and sets: lengths, keys, members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...bytecode import FrameSnapshot
from ..constants import exact_name, same_constant
from ..contents import SIZED, length_of
from ..guard import ANY_KEY, DictKeysAre, EntriesEmpty, HasKeyAt, KeyAbsent, LengthIs, SetHas
from ..live_objects import entries_of, instance_dict
from ..read import UNREADABLE, read_source
from ..source import InstanceDict, Source, describe
from ..words import difference, short
from .row import Kind, OfSource, Registers, Step, missing, row

__all__: list[str] = []

_FEW = 2  # absent names that get a step each


@row(LengthIs, rank=1)
class _LengthIs(OfSource[LengthIs]):
    def step(self, guard: LengthIs, register: int) -> Step:
        return ("LENGTH", register, guard.length)

    def value_differs(self, guard: LengthIs, name: str, value: object) -> str | None:
        if not issubclass(type(value), SIZED):
            return f"{name} is a {type(value).__name__}, which has no plain length"
        length = length_of(value)
        return difference(f"len({name})", length, guard.length, length == guard.length)

    def show(self, guard: LengthIs) -> str:
        return f"len({describe(guard.source)}) == {guard.length}"

    def keep(self, guard: LengthIs, name: str, value: object) -> str:
        return f"give {name} the same length in all calls, or make it one tensor (torch.stack)"


@row(SetHas, rank=3)
class _SetHas(OfSource[SetHas]):
    def step(self, guard: SetHas, register: int) -> Step:
        return ("SET_HAS", register, guard.item, int(guard.present))

    def value_differs(self, guard: SetHas, name: str, value: Any) -> str | None:
        if not issubclass(type(value), set | frozenset):
            return f"{name} is a {type(value).__name__}, was a set"
        base = set if issubclass(type(value), set) else frozenset
        has = base.__contains__(value, guard.item)
        words = f"{name} {'has' if has else 'lacks'} {short(guard.item)} now"
        return None if has == guard.present else words

    def show(self, guard: SetHas) -> str:
        return f"{short(guard.item)} {'in' if guard.present else 'not in'} {describe(guard.source)}"


@row(DictKeysAre, rank=6)
class _DictKeysAre(OfSource[DictKeysAre]):
    def step(self, guard: DictKeysAre, register: int) -> Step:
        return ("DICT_KEYS", register, tuple(guard.keys), ANY_KEY)

    def value_differs(self, guard: DictKeysAre, name: str, value: object) -> str | None:
        if not issubclass(type(value), dict):
            return _no_dict(name, value)
        now = [key for key, _ in entries_of(value)]
        same = _same_keys(now, guard.keys)
        return difference(f"list({name})", short(now), short(list(guard.keys)), same)

    def show(self, guard: DictKeysAre) -> str:
        return f"list({describe(guard.source)}) == {short(list(guard.keys))}"

    def keep(self, guard: DictKeysAre, name: str, value: object) -> str:
        return f"give {name} the same keys in the same order in all calls"


@row(KeyAbsent, rank=4)
class _KeyAbsent(OfSource[KeyAbsent]):
    def lower(self, guard: KeyAbsent, registers: Registers) -> tuple[Step, ...]:
        match guard:
            case KeyAbsent(source=InstanceDict(base=owner), key=str(key)):
                return (("INSTANCE_ABSENT", registers.register(owner), exact_name(key)),)
        return super().lower(guard, registers)

    def step(self, guard: KeyAbsent, register: int) -> Step:
        return ("KEY_ABSENT", register, guard.key)

    def differs(self, guard: KeyAbsent, frame: FrameSnapshot) -> str | None:
        match guard:
            case KeyAbsent(source=InstanceDict(base=owner), key=str(key)):
                return _attribute_appeared(owner, key, frame)
        return super().differs(guard, frame)

    def value_differs(self, guard: KeyAbsent, name: str, value: Any) -> str | None:
        if not issubclass(type(value), dict):
            return _no_dict(name, value)
        return f"{name} has {short(guard.key)} now" if dict.__contains__(value, guard.key) else None

    def show(self, guard: KeyAbsent) -> str:
        return f"{short(guard.key)} not in {describe(guard.source)}"

    def keep(self, guard: KeyAbsent, name: str, value: object) -> str:
        return f"set {name}[{short(guard.key)}] before the first call, or never"


@row(HasKeyAt, rank=4)
class _HasKeyAt(Kind[HasKeyAt]):
    def sources(self, guard: HasKeyAt) -> tuple[Source, ...]:
        return guard.source, guard.key

    def lower(self, guard: HasKeyAt, registers: Registers) -> tuple[Step, ...]:
        both = registers.registers(self.sources(guard))
        return (("HAS_KEY_AT", *both, int(guard.there)),)

    def differs(self, guard: HasKeyAt, frame: FrameSnapshot) -> str | None:
        found = []
        for source in self.sources(guard):
            try:
                found.append(read_source(source, frame))
            except UNREADABLE:
                return missing(source)
        table, key = found
        if type(table) is not dict or type(key) is not str:
            return f"{describe(guard.source)} is a {type(table).__name__}, was a dict of str"
        has = key in table
        words = f"{describe(guard.source)} {'has' if has else 'has not'} {short(key)}"
        return None if has == guard.there else words

    def show(self, guard: HasKeyAt) -> str:
        words = "in" if guard.there else "not in"
        return f"{describe(guard.key)} {words} {describe(guard.source)}"


@row(EntriesEmpty, rank=5)
class _EntriesEmpty(OfSource[EntriesEmpty]):
    def lower(self, guard: EntriesEmpty, registers: Registers) -> tuple[Step, ...]:
        names = [exact_name(key) for key in guard.absent if isinstance(key, str)]
        few = not guard.keys and len(names) == len(guard.absent) <= _FEW
        # For few names, one step each costs no more than loading the dictionary to look into it.
        # Reading `__dict__` would also make CPython materialise it (attributes are stored inline).
        if few and isinstance(guard.source, InstanceDict):
            register = registers.register(guard.source.base)
            return tuple(("INSTANCE_ABSENT", register, name) for name in names)
        return super().lower(guard, registers)

    def step(self, guard: EntriesEmpty, register: int) -> Step:
        absent = (exact_name(key) if isinstance(key, str) else key for key in guard.absent)
        return ("ENTRIES_EMPTY", register, tuple(guard.keys), tuple(absent))

    def value_differs(self, guard: EntriesEmpty, name: str, value: Any) -> str | None:
        if not issubclass(type(value), dict):
            return _no_dict(name, value)
        filled = [key for key in guard.keys if not _is_empty_dict(dict.get(value, key, {}))]
        changed = [*filled, *(key for key in guard.absent if dict.__contains__(value, key))]
        return f"{name} has {_listed(changed)} now" if changed else None

    def show(self, guard: EntriesEmpty) -> str:
        empty = [f"{_listed(guard.keys)} empty"] if guard.keys else []
        none = [f"no {_listed(guard.absent)}"] if guard.absent else []
        return f"{describe(guard.source)}: {'; '.join((*empty, *none))}"


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(key if isinstance(key, str) else short(key) for key in keys)


def _no_dict(name: str, value: object) -> str:
    return f"{name} is a {type(value).__name__}, was a dict"


def _is_empty_dict(value: object) -> bool:
    return issubclass(type(value), dict) and not dict.__len__(value)  # type: ignore[arg-type]


def _same_keys(now: list[object], keys: tuple[object, ...]) -> bool:
    pairs = zip(now, keys, strict=False)
    return len(now) == len(keys) and all(
        wanted is ANY_KEY or same_constant(key, wanted) for key, wanted in pairs
    )


def _attribute_appeared(owner: Source, key: str, frame: FrameSnapshot) -> str | None:
    """Describe a new instance attribute; an instance without a dictionary has none."""
    try:
        instance = read_source(owner, frame)
    except UNREADABLE:
        return missing(owner)
    try:
        table = instance_dict(instance)
    except AttributeError:
        return None
    return f"{describe(owner)} has an attribute {key} of its own now" if key in table else None
