"""Rows for guards on objects: types, constants, identity, ranges of numbers, cells."""

from __future__ import annotations

import math
import types
from typing import Any

import torch

from ...bytecode import FrameSnapshot
from ...symbols.context import is_true_of
from ...symbols.expr import Expr
from ...symbols.float_programs import postfix
from ...symbols.interval import EXACT, INT64
from ...symbols.polynomial import written
from ..constants import is_constant, same_constant
from ..function_cache import cached_result
from ..guard import (
    READ_BY_GUARDS,
    CacheLacks,
    CellEmpty,
    DifferentObjects,
    IdentityIs,
    InRange,
    NumbersRelate,
    SameObject,
    TypeIs,
    ValueEquals,
)
from ..read import UNREADABLE, read_source
from ..source import (
    Argument,
    CacheEntry,
    CellContents,
    FunctionPart,
    Global,
    InstanceDict,
    Item,
    Source,
    describe,
)
from ..weak_fields import can_be_weak
from ..words import class_name, difference, few, one_value, range_end, short
from .row import Kind, OfSource, Registers, Step, missing, row

__all__: list[str] = []


@row(TypeIs, rank=0)
class _TypeIs(OfSource[TypeIs]):
    def step(self, guard: TypeIs, register: int) -> Step:
        return ("TYPE_IS", register, guard.type)

    def value_differs(self, guard: TypeIs, name: str, value: object) -> str | None:
        now, before = class_name(type(value)), short(guard.type)
        return difference(f"type({name})", now, before, type(value) is guard.type)

    def show(self, guard: TypeIs) -> str:
        return f"type({describe(guard.source)}) is {short(guard.type)}"

    def keep(self, guard: TypeIs, name: str, value: object) -> str:
        if isinstance(guard.source.root, Global):
            return _keep_object(guard.source, name, value)
        return f"have one type of {name} in all calls, or a tagged function for each"


@row(ValueEquals, rank=1)
class _ValueEquals(OfSource[ValueEquals]):
    def step(self, guard: ValueEquals, register: int) -> Step:
        if is_constant(guard.value):
            return ("EQUALS", register, guard.value)
        return _identical(register, guard.value)

    def value_differs(self, guard: ValueEquals, name: str, value: object) -> str | None:
        same = same_constant(value, guard.value)
        return difference(name, short(value), short(guard.value), same)

    def show(self, guard: ValueEquals) -> str:
        return f"{describe(guard.source)} == {short(guard.value)}"

    def keep(self, guard: ValueEquals, name: str, value: object) -> str:
        wanted = guard.value
        if isinstance(wanted, bool) and name.endswith(".training"):
            owner = name.removesuffix(".training")
            return f"call {owner}.train() or {owner}.eval() outside of the loop, not between calls"
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            number = _keep_number(name, value)
            if number:
                return number
        return one_value(name)


@row(IdentityIs, rank=0)
class _IdentityIs(OfSource[IdentityIs]):
    def step(self, guard: IdentityIs, register: int) -> Step:
        return _identical(register, guard.value)

    def value_differs(self, guard: IdentityIs, name: str, value: object) -> str | None:
        now, before = short(value), short(guard.value)
        before = before if now != before else f"another {type(guard.value).__name__}"
        return difference(name, now, before, value is guard.value)

    def show(self, guard: IdentityIs) -> str:
        return f"{describe(guard.source)} is {short(guard.value)}"

    def keep(self, guard: IdentityIs, name: str, value: object) -> str:
        return _keep_object(guard.source, name, value)


@row(InRange, rank=2)
class _InRange(OfSource[InRange]):
    def step(self, guard: InRange, register: int) -> Step:
        return ("IN_RANGE", register, guard.low, guard.high, guard.whole)

    def value_differs(self, guard: InRange, name: str, value: Any) -> str | None:
        number = value
        if issubclass(type(value), torch.Tensor):
            plain = value.layout is torch.strided and value.device.type == "cpu"
            if not plain or value.numel() != 1 or value.dtype not in READ_BY_GUARDS:
                return f"{name} is not a CPU tensor with one element"
            number = value.item() if value.dtype is not torch.bool else int(value)
        if type(number) not in (float, int):
            return f"{name} is a {type(number).__name__}, was a number"
        if guard.low <= number <= guard.high:
            has_fraction = guard.whole and number != math.trunc(number)
            return f"{name} is {number}, was a whole number" if has_fraction else None
        return f"{name} is {number}, not in [{range_end(guard.low)}, {range_end(guard.high)}]"

    def show(self, guard: InRange) -> str:
        name = describe(guard.source)
        if (guard.low, guard.high) == INT64[:2]:
            return f"{name} has 64 bits"
        whole = ", a whole number" if guard.whole else ""
        return f"{range_end(guard.low)} <= {name} <= {range_end(guard.high)}{whole}"

    def keep(self, guard: InRange, name: str, value: object) -> str:
        return _keep_number(name, value)


@row(NumbersRelate, rank=3)
class _NumbersRelate(Kind[NumbersRelate]):
    def sources(self, guard: NumbersRelate) -> tuple[Source, ...]:
        return guard.sources

    def lower(self, guard: NumbersRelate, registers: Registers) -> tuple[Step, ...]:
        places = {source: place for place, source in enumerate(guard.sources)}
        sides = (*postfix(guard.left, places), *postfix(guard.right, places), (guard.op, 0.0))
        return (("NUMBERS", registers.registers(guard.sources), sides),)

    def differs(self, guard: NumbersRelate, frame: FrameSnapshot) -> str | None:
        known: dict[Expr, object] = {}
        for symbol in guard.symbols:
            source: Any = symbol.origin
            try:
                number = read_source(source, frame)
            except UNREADABLE:
                return missing(source)
            is_number = type(number) is symbol.kind
            if not is_number or (symbol.kind is int and not EXACT.has(number)):
                return f"{describe(source)} is {short(number)}, was a number"
            known[symbol] = number
        if is_true_of(guard.op, guard.left, guard.right, dict(known)):
            return None
        now = ", ".join(f"{describe(s.origin)} is {n}" for s, n in known.items())  # type: ignore[attr-defined,arg-type]
        return f"{now}, must satisfy {self.show(guard)}"

    def show(self, guard: NumbersRelate) -> str:
        return f"{_named(guard.left)} {guard.op} {_named(guard.right)}"


def _named(expr: Expr) -> str:
    return written(expr, lambda symbol: describe(symbol.origin))  # type: ignore[arg-type]


@row(CellEmpty, rank=2)
class _CellEmpty(OfSource[CellEmpty]):
    def step(self, guard: CellEmpty, register: int) -> Step:
        return ("CELL_EMPTY", register)

    def value_differs(self, guard: CellEmpty, name: str, value: object) -> str | None:
        if type(value) is not types.CellType:
            return f"{name} is a {type(value).__name__}, was an empty cell"
        try:
            return f"{name} has a value now: {short(value.cell_contents)}"
        except ValueError:
            return None

    def show(self, guard: CellEmpty) -> str:
        return f"{describe(guard.source)} is an empty cell"

    def keep(self, guard: CellEmpty, name: str, value: object) -> str:
        return f"give {name} its value before the first call"


@row(CacheLacks, rank=3)
class _CacheLacks(OfSource[CacheLacks]):
    def step(self, guard: CacheLacks, register: int) -> Step:
        return ("CACHE_LACKS", register, guard.key, guard.allowed)

    def value_differs(self, guard: CacheLacks, name: str, value: object) -> str | None:
        try:
            found = cached_result(value, guard.key)
        except UNREADABLE:
            return None
        if any(same_constant(found, constant) for constant in guard.allowed):
            return None
        return f"the cache of {name} holds {short(found)} now"

    def show(self, guard: CacheLacks) -> str:
        call = describe(CacheEntry(guard.source, guard.key))
        other = f", or holds {short(guard.allowed[0])}" if guard.allowed else ""
        return f"the cache lacks {call}{other}"


@row(SameObject, rank=0)
class _SameObject(Kind[SameObject]):
    def sources(self, guard: SameObject) -> tuple[Source, ...]:
        return guard.source, guard.other

    def lower(self, guard: SameObject, registers: Registers) -> tuple[Step, ...]:
        return (("SAME", *registers.registers(self.sources(guard))),)

    def differs(self, guard: SameObject, frame: FrameSnapshot) -> str | None:
        names = f"{describe(guard.source)} and {describe(guard.other)}"
        try:
            same = read_source(guard.source, frame) is read_source(guard.other, frame)
        except UNREADABLE:
            return f"{names} do not both exist any more"
        return None if same else f"{names} are two objects, were one"

    def show(self, guard: SameObject) -> str:
        return f"{describe(guard.source)} is {describe(guard.other)}"

    def advise(self, guard: SameObject, frame: FrameSnapshot) -> str:
        left, right = map(describe, self.sources(guard))
        return f"pass one and the same object as {left} and {right}"


@row(DifferentObjects, rank=7)
class _DifferentObjects(Kind[DifferentObjects]):
    def sources(self, guard: DifferentObjects) -> tuple[Source, ...]:
        return (*guard.sources, *guard.others)

    def lower(self, guard: DifferentObjects, registers: Registers) -> tuple[Step, ...]:
        sides = registers.registers(guard.sources), registers.registers(guard.others)
        return (("DIFFERENT", *sides),)

    def differs(self, guard: DifferentObjects, frame: FrameSnapshot) -> str | None:
        """Name two paths that led to different objects and lead to one now."""
        known: dict[int, Source] = {}
        for place, source in enumerate(self.sources(guard)):
            try:
                value = read_source(source, frame)
            except UNREADABLE:
                return missing(source)
            if id(value) in known:
                pair = f"{describe(known[id(value)])} and {describe(source)}"
                return f"{pair} are one object, were two"
            if place < len(guard.sources):
                known[id(value)] = source
        return None

    def show(self, guard: DifferentObjects) -> str:
        names = [describe(source) for source in self.sources(guard)]
        some, others = names[: len(guard.sources)], names[len(guard.sources) :]
        if len(names) == 2:
            return f"{names[0]} is not {names[1]}"
        if not others:
            return f"no two are the same object: {few(names)}"
        return f"{few(some)}: different objects, and none of {few(others)}"


def _identical(register: int, value: object) -> Step:
    return ("IS_WEAK" if can_be_weak(value) else "IS", register, value)


# ------------------------------------------------------------------------------------------- advice


def _keep_number(name: str, value: object) -> str:
    if not issubclass(type(value), int | float):
        return ""
    return f"pass it as a tensor: {name} = torch.tensor({short(value)})"


def _keep_object(source: Source, name: str, value: object) -> str:
    owner = source.root
    if isinstance(owner, Global):
        return f"do not bind the global {owner.name} anew between calls, or pass it as an argument"
    function = isinstance(source, FunctionPart) or type(value) is types.FunctionType
    if function or type(value) is types.CodeType:
        made = _holder(source)
        return f"define {made} once, outside of the loop: each def or lambda makes a new function"
    if isinstance(source, Argument | CellContents | InstanceDict | Item):
        return f"make {name} once, outside of the loop, and pass the same object in all calls"
    return ""


def _holder(source: Source) -> str:
    while isinstance(source, FunctionPart):
        source = source.base
    return describe(source)
