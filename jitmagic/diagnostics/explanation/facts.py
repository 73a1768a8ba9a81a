"""facts: describes the guards that a caller can make fail.

Input: the guards of a trace. Output: a sentence for each fact about arguments, globals and numbers,
and one for all parameters. Guards on classes, functions, hooks and torch's own names are only
counted, because programs hardly ever change them between calls.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...figures import count
from ...guards.check import show_guard
from ...guards.guard import (
    DictKeysAre,
    GlobalState,
    Guard,
    InRange,
    LengthIs,
    NumbersRelate,
    SizesRelate,
    TensorMatch,
    ValueEquals,
)
from ...guards.source import (
    UNNAMED,
    Argument,
    FunctionPart,
    Global,
    InstanceDict,
    Item,
    Source,
    TypeAttr,
    TypeOf,
    describe,
)

__all__ = ["facts_of"]

_IN_WORDS = (TensorMatch, ValueEquals, InRange, LengthIs, DictKeysAre)


def facts_of(guards: Iterable[Guard]) -> tuple[tuple[str, ...], int]:
    """Return the sentences, and the number of other guards."""
    sentences: dict[str, None] = {}
    parameters = others = 0
    for guard in sorted(guards, key=_rank):
        if isinstance(guard, TensorMatch) and _is_held(guard.source):
            parameters += 1
        elif (sentence := _sentence(guard)) and sentence not in sentences:
            sentences[sentence] = None
        elif not sentence:
            others += 1
    if parameters:
        each = "parameters and other tensors of objects keep their shape, dtype and device"
        sentences[f"{each} ({parameters:,})"] = None
    return tuple(sentences), others


def _rank(guard: Guard) -> int:
    """Return a sort key: tensors first, torch's modes last."""
    kinds = (TensorMatch, ValueEquals, SizesRelate, NumbersRelate, InRange)
    found = (rank for rank, kind in enumerate(kinds) if isinstance(guard, kind))
    return next(found, len(kinds) + isinstance(guard, GlobalState))


def _sentence(guard: Guard) -> str:
    """Return a guard in words; "" if callers do not change what it tests."""
    if isinstance(guard, GlobalState):
        recorded = "recorded" if guard.facts.grad_enabled else "not recorded (no_grad)"
        return f"gradients are {recorded}, torch's other modes are as they were"
    if isinstance(guard, SizesRelate | NumbersRelate):
        return show_guard(guard)
    if not isinstance(guard, _IN_WORDS) or not _is_callers(guard.source):
        return ""
    name = describe(guard.source)
    if isinstance(guard, TensorMatch):
        kind = show_guard(guard).partition(": ")[2]
        return f"{name} is {kind}"
    if _is_held(guard.source) and not isinstance(guard, ValueEquals):
        return ""
    if isinstance(guard, LengthIs):
        return f"{name} has {count(guard.length, 'item')}"
    if isinstance(guard, DictKeysAre):
        return f"the keys of {name} are {', '.join(map(repr, guard.keys)) or 'none'}"
    if isinstance(guard, ValueEquals):
        return show_guard(guard).replace(" == ", " is ", 1)
    return show_guard(guard)


def _bases(source: Source) -> Iterable[Source]:
    """Yield the source and all sources that it is reached through."""
    yield source
    for base in source.bases:
        yield from _bases(base)


def _is_held(source: Source) -> bool:
    """Return whether the source is an attribute of an object: a module's parameter, an optimizer's
    state.
    """
    return any(isinstance(each, InstanceDict) for each in _bases(source))


def _is_callers(source: Source) -> bool:
    """Return whether a caller knows the source by a name.

    Private attributes, parts of classes and functions, and unnamed stack values are excluded.
    """
    for each in _bases(source):
        if isinstance(each, Argument) and each.name.startswith(UNNAMED):
            return False
        if isinstance(each, TypeOf | TypeAttr | FunctionPart):
            return False
        if isinstance(each, Global) and each.name.startswith("_"):
            return False
        is_attribute = isinstance(each, Item) and isinstance(each.base, InstanceDict)
        if is_attribute and str(getattr(each, "key", "")).startswith("_"):
            return False
    return True
