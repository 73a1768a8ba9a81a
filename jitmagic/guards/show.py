"""show: one line of text per guard, for people.

Comes in: guards. Goes out: `x: float32[8, 64] cpu`, `self.training == True`, ...: conditions one
could read aloud, without addresses.
"""

from __future__ import annotations

from dataclasses import fields

from ..symbols.interval import INT64
from .check import range_end, short
from .guard import (
    CellEmpty,
    ClassFacts,
    DictKeysAre,
    DifferentObjects,
    EntriesEmpty,
    GlobalMissing,
    GlobalState,
    Guard,
    IdentityIs,
    InRange,
    KeyAbsent,
    LengthIs,
    NamespaceFacts,
    NoOverlap,
    SameObject,
    SetHas,
    SizesRelate,
    StateRead,
    TensorKind,
    TensorMatch,
    TypeIs,
    Unhooked,
    ValueEquals,
)
from .sizes import relation
from .source import Builtin, Source, describe

__all__ = ["show_guard"]

_MOST = 6  # names of one kind in a line


def show_guard(guard: Guard) -> str:
    """The condition of one guard."""
    match guard:
        case TensorMatch(source=source, spec=spec):
            strides = f" stride {tuple(spec.stride)}"
            return f"{describe(source)}: {spec}{'' if _is_dense(guard) else strides}"
        case TensorKind(source=source, cls=cls, dual=dual):
            tangent = ", with a tangent" if dual else ""
            return f"{describe(source)} is a {short(cls)} of its kind{tangent}"
        case TypeIs(source=source, type=cls):
            return f"type({describe(source)}) is {short(cls)}"
        case ValueEquals(source=source, value=value):
            return f"{describe(source)} == {short(value)}"
        case IdentityIs(source=source, value=value):
            return f"{describe(source)} is {short(value)}"
        case InRange(source=source, low=low, high=high) if (low, high) == INT64[:2]:
            return f"{describe(source)} has 64 bits"
        case InRange(source=source, low=low, high=high):
            return f"{range_end(low)} <= {describe(source)} <= {range_end(high)}"
        case SizesRelate():
            return relation(guard)
        case LengthIs(source=source, length=length):
            return f"len({describe(source)}) == {length}"
        case SameObject(source=left, other=right):
            return f"{describe(left)} is {describe(right)}"
        case DifferentObjects(sources=sources, others=others):
            return _show_different(sources, others)
    return _show_absence(guard)


def _show_different(sources: tuple[Source, ...], others: tuple[Source, ...]) -> str:
    names = [describe(source) for source in (*sources, *others)]
    if len(names) == 2:
        return f"{names[0]} is not {names[1]}"
    if not others:
        return f"no two are the same object: {_few(names)}"
    return f"none is another of them: {_few(names[: len(sources)])}; {_few(names[len(sources) :])}"


def _show_absence(guard: Guard) -> str:
    match guard:
        case DictKeysAre(source=source, keys=keys):
            return f"list({describe(source)}) == {short(list(keys))}"
        case SetHas(source=source, item=item, there=there):
            return f"{short(item)} {'in' if there else 'not in'} {describe(source)}"
        case KeyAbsent(source=source, key=key):
            return f"{short(key)} not in {describe(source)}"
        case EntriesEmpty(source=source, keys=keys, absent=absent):
            none = f"; no {', '.join(absent)}" if absent else ""
            return f"{describe(source)}: {', '.join(keys)} empty{none}"
        case ClassFacts():
            return _show_class(guard)
        case NamespaceFacts(table=table, facts=names):
            words = [f"no {name.name}" if name.absent else str(name.name) for name in names]
            return f"{table.get('__name__', 'a namespace')}: same {_few(words)}"
        case StateRead(reader=reader, value=value):
            return f"{getattr(reader, 'func', reader).__name__}() == {short(value)}"
        case GlobalMissing(source=Builtin(name=name)):
            return f"no builtin {name}"
        case GlobalMissing(source=source):
            return f"no global {describe(source)}"
        case NoOverlap(sources=sources):
            return f"{', '.join(map(describe, sources))} share no memory"
        case Unhooked(source=source):
            return f"{describe(source)} has no hooks for its gradient"
        case CellEmpty(source=source):
            return f"{describe(source)} is an empty cell"
        case GlobalState(facts=facts):
            *known, rest = (f"{f.name}={getattr(facts, f.name)}" for f in fields(facts))
            values = known if facts.autocast_rest is None else [*known, rest]
            return f"torch state: {', '.join(values)}"
    raise TypeError(f"not a guard: {guard!r}")


def _show_class(guard: ClassFacts) -> str:
    """`Net: same bases; same forward; no __len__, fc1; no property size`."""
    parts = ["same bases"]
    for kinds, words in (
        (("is", "slot"), "same"),
        (("absent",), "no"),
        (("yields",), "no property"),
    ):
        names = list(dict.fromkeys(fact.name for fact in guard.facts if fact.kind in kinds))
        if names:
            parts.append(f"{words} {_few(names)}")
    return f"class {short(guard.cls)}: {'; '.join(parts)}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join(names[:_MOST])}{more}"


def _is_dense(guard: TensorMatch) -> bool:
    expected = 1
    for size, stride in zip(reversed(guard.spec.shape), reversed(guard.spec.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
