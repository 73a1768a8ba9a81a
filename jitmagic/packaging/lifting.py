"""Finds what a compiled call reads and writes of its program, and where a file has it.

In: the trace of a call, its guards and its frame. Out: `Lifted`: for each source that begins at no
argument of the caller's, the source at which the file has that value, and the guards that hold for
all calls of the file. The others are about the program as it was when it was saved.

A call may assign to buffers of its module. It may write to other objects of the program: the file
has a stand-in for such an object, and what calls read of it is state (state.py). Calls of a
functools.lru_cache that has the result are left out: all that they do is count a hit, and no
compiled code reads that. Other writes raise CannotKeep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..errors import CannotKeep
from ..frame.original import parameter_count
from ..guards.constants import is_constant, same_constant
from ..guards.function_cache import LRU_CACHE, cache_key, cached_result
from ..guards.guard import (
    DifferentObjects,
    EntriesEmpty,
    GlobalState,
    Guard,
    IdentityIs,
    KeyAbsent,
    SameObject,
    StateRead,
    TensorMatch,
    TypeIs,
)
from ..guards.kinds import KINDS
from ..guards.live_objects import instance_dict
from ..guards.read import UNREADABLE, read_source
from ..guards.source import (
    CellContents,
    Global,
    Globals,
    InstanceDict,
    Item,
    SlotAttr,
    Source,
    TypeAttr,
    TypeOf,
    describe,
)
from ..lazy_dataclass import dataclass, replace
from ..trace.result import (
    Constant,
    DelItem,
    Effect,
    FromSource,
    Perform,
    Recipe,
    SetAttr,
    SetCell,
    SetItem,
    Trace,
    sources_read,
)
from .program import Names
from .state import CELL, HINT, State, Write, check_guard, refusal

__all__ = ["Lifted", "Reads", "check_writes", "lift", "tensors_of_program", "written_and_read"]

_CONTAINERS = (dict, list, set)
_OF_IDENTITY = (DifferentObjects, IdentityIs, SameObject, TypeIs)  # writes change none of this


@dataclass(frozen=True, slots=True)
class Lifted:
    """`values`: those that the call reads, by source. `targets`: the types of objects that it only
    writes to. `renamed`: the source of each in the file. `guards`: those that stay. `mutated`:
    the ids of tensors that the graph writes to. `effects`: those that calls of the file have.
    `writes` and `reads` are for `check_writes`. `renamed` has the sources of state too.
    """

    values: Mapping[Source, Any]
    targets: Mapping[Source, type]
    renamed: Mapping[Source, Source]
    guards: tuple[Guard, ...]
    mutated: frozenset[int]
    effects: tuple[Effect, ...]
    writes: tuple[Write, ...]
    reads: Reads


def lift(
    traced: Trace,
    guards: tuple[Guard, ...],
    snapshot: FrameSnapshot,
    names: Names,
    state: State,
) -> Lifted:
    """Return what the file has of the program, whose owner and values `names` knows."""
    own = _Own(snapshot, names.owner)
    read = (*traced.sources, *sources_read((traced.draws, traced.casts, traced.exit)))
    kept = (one for one in traced.effects if not _counts_a_hit(one, own, snapshot))
    effects = tuple(_by_source(one, snapshot) for one in kept)
    written = [s for s in sources_read(effects) if not own.has(s)]
    placed = _placed((*read, *written), guards, own, state, snapshot)
    passed = _passed_as_arguments(guards, own, snapshot)
    fixed = (s for s in (*read, *passed) if not own.has(s) and s not in placed)
    values = {s: read_source(s, snapshot) for s in fixed}
    targets: dict[Source, Any] = {}
    for source in written:
        if source in placed:
            continue
        value = read_source(source, snapshot)
        if is_constant(value) or isinstance(value, torch.Tensor | type):
            values[source] = value
        else:
            targets[source] = value
    renamed = {s: names.source_of(s, value, snapshot) for s, value in (values | targets).items()}
    renamed |= placed
    staying = [guard for guard in guards if _stays(guard, own, values, placed)]
    mutated = [traced.inputs[n].source for n in traced.mutated]
    free = {s: value for s, value in targets.items() if isinstance(renamed[s], Global)}
    changed = {s: value for s, value in targets.items() if s in free or names.has_table(value)}
    stays = {*map(id, staying)}
    reads = Reads(snapshot, (guard for guard in guards if id(guard) not in stays), values)
    return Lifted(
        values,
        {source: type(value) for source, value in free.items()},
        renamed,
        tuple(staying),
        frozenset(id(read_source(s, snapshot)) for s in mutated if s in renamed),
        effects,
        tuple(_writes(effects, changed, values | targets, renamed)),
        reads,
    )


class _Own:
    """The arguments that callers of a file pass: all but the owner and the cells."""

    def __init__(self, snapshot: FrameSnapshot, owner: Source | None) -> None:
        self._indices = frozenset(range(parameter_count(snapshot.code)))
        self._owner = owner

    def has(self, source: Source) -> bool:
        """Return whether the value at a source is or belongs to one of these arguments."""
        is_argument = getattr(source.root, "index", -1) in self._indices
        return is_argument and all(part != self._owner for part in source.path())


def _placed(
    read: Iterable[Source],
    guards: Iterable[Guard],
    own: _Own,
    state: State,
    snapshot: FrameSnapshot,
) -> dict[Source, Source]:
    """Return the sources in the file of what the call reads, or guards check, of the state."""
    checked = (source for guard in guards for source in _read_by(guard))
    sources = (source for source in (*read, *checked) if not own.has(source))
    places = ((source, state.place(source, snapshot)) for source in sources)
    return {source: place for source, place in places if place is not None}


def tensors_of_program(
    guards: Iterable[Guard], snapshot: FrameSnapshot, names: Names
) -> list[torch.Tensor]:
    """Return the tensors of the program that a call has as arguments."""
    passed = _passed_as_arguments(guards, _Own(snapshot, names.owner), snapshot)
    return [read_source(source, snapshot) for source in passed]


def _passed_as_arguments(
    guards: Iterable[Guard], own: _Own, snapshot: FrameSnapshot
) -> Iterator[Source]:
    """Yield the sources of the program's tensors that the example has as arguments too: the graph
    reads each of them at one source only, and calls with other arguments have no entry.
    """
    guards = tuple(guards)
    compared = {one.source for one in guards if isinstance(one, IdentityIs)}  # such as a function
    for guard in guards:
        if isinstance(guard, SameObject) and own.has(guard.source) != own.has(guard.other):
            sources = (guard.source, guard.other)
            argument, source = sources if own.has(guard.source) else reversed(sources)
            value = read_source(source, snapshot)
            if isinstance(value, torch.Tensor):
                yield source
            elif not is_constant(value) and argument not in compared:
                raise CannotKeep(f"an argument that is {describe(source)} too")


def _stays(
    guard: Guard, own: _Own, lifted: Mapping[Source, Any], placed: Mapping[Source, Source]
) -> bool:
    """Return whether a guard is about arguments, the tensors in the file, or the process."""
    if isinstance(guard, GlobalState | StateRead):
        return True
    sources = KINDS[type(guard)].sources(guard)
    if isinstance(guard, TensorMatch) and guard.source in lifted:
        return True
    stays = bool(sources) and all(own.has(s) or s in lifted or s in placed for s in sources)
    if (state := next((s for s in _read_by(guard) if s in placed), None)) is not None:
        check_guard(guard, describe(state), stays)
    return stays


# ------------------------------------------------------------------------------------------ writes


class Reads:
    """The places that a call reads and that no guard of the file checks.

    `of[id(object)]` has, for each read of a part of an object, the steps from the part down to the
    object. Objects are compared, not sources: a program may know one object under two names.
    """

    def __init__(
        self, snapshot: FrameSnapshot, dropped: Iterable[Guard], values: Iterable[Source]
    ) -> None:
        self._snapshot, self._dropped, self._values = snapshot, tuple(dropped), tuple(values)
        self._of: dict[int, list[tuple[Source, ...]]] = {}
        self._alive: list[object] = []  # whose ids are keys of `_of`

    @cached_property
    def of(self) -> Mapping[int, list[tuple[Source, ...]]]:
        """Read every place; only files with writes to stand-ins ask."""
        for guard in self._dropped:
            for source in _read_by(guard):
                self._add(source, only_identity=isinstance(guard, _OF_IDENTITY))
        for source in self._values:
            self._add(source, only_identity=True)
        return self._of

    def _add(self, source: Source, only_identity: bool) -> None:
        steps: tuple[Source, ...] = ()
        for at in source.path():
            if steps or not only_identity:
                with suppress(*UNREADABLE):
                    self._alive.append(read_source(at, self._snapshot))
                    self._of.setdefault(id(self._alive[-1]), []).append(steps)
            is_identity_of_dict = only_identity and not steps and isinstance(at, InstanceDict)
            if isinstance(at, TypeOf) or is_identity_of_dict:
                return  # no write changes the class of an object, or which dict has its attributes
            steps = (*steps, at)
        if isinstance(steps[-1], Global):
            self._of.setdefault(id(self._snapshot.globals), []).append(steps)

    def depend_on(self, value: object, key: object) -> bool:
        """Return whether a read may find what is written to an object, or to a part of it."""
        found = self.of.get(id(value), ())
        return any(key is None or _part(steps) in (key, None) for steps in found)


def _read_by(guard: Guard) -> tuple[Source, ...]:
    """Return the sources of the values that a guard depends on."""
    match guard:
        case KeyAbsent(source=source, key=key):
            return (Item(source, key),)
        case EntriesEmpty(source=source, keys=keys, absent=absent):
            return tuple(Item(source, key) for key in (*keys, *absent))
    return KINDS[type(guard)].sources(guard)


def _part(steps: tuple[Source, ...]) -> object:
    """Return the attribute or key of an object through which steps lead; None: they read more."""
    match steps[-2:]:
        case [Item(_, str(key)), InstanceDict()]:
            return key
        case [*_, SlotAttr(_, key) | TypeAttr(_, key) | Item(_, key) | Global(key)]:
            return key
        case [*_, CellContents()]:
            return CELL
    return None


def _writes(
    effects: Iterable[Effect],
    free: Mapping[Source, Any],
    read: Mapping[Source, Any],
    renamed: Mapping[Source, Source],
) -> Iterator[Write]:
    """Yield the writes to objects of `free`. Raises CannotKeep for one without a stand-in."""
    for effect in effects:
        if not isinstance(effect, Perform) and isinstance(_target(effect), Constant):
            raise CannotKeep("a write to an object of the process, such as a class")
        for source, key in _places_written(effect):
            if source not in free or _restores(effect, free[source], read):
                continue
            target, shown = free[source], describe(source)
            if type(target) is LRU_CACHE:
                raise CannotKeep(f"a call of {shown}, whose cache has no result for it\n{HINT}")
            is_entry = isinstance(effect, SetItem | DelItem)
            if (key is None or is_entry) and type(target) not in _CONTAINERS:
                raise CannotKeep(f"a write to {shown}")
            shown = _shown(source, key, is_entry)
            part = None if type(target) is list else key
            yield Write(source, renamed[source], target, part, shown)


def _shown(source: Source, key: object, is_entry: bool) -> str:
    """Return the text of an object, or of its part that is written."""
    if isinstance(source, Globals) or key in (None, CELL):
        return str(key) if isinstance(source, Globals) else describe(source)
    return describe(source) + (f"[{key!r}]" if is_entry else f".{key}")


def _by_source(effect: Effect, snapshot: FrameSnapshot) -> Effect:
    """Return an assignment to a global variable with the source of the globals, which are an object
    in the file as others are.
    """
    if not isinstance(effect, SetItem | DelItem) or not isinstance(effect.object, Constant):
        return effect
    is_global = effect.object.value is snapshot.globals
    return replace(effect, object=FromSource(Globals())) if is_global else effect


def _counts_a_hit(effect: Effect, own: _Own, snapshot: FrameSnapshot) -> bool:
    """Return whether an effect calls a functools.lru_cache that has the result of each such call.

    A call without a result there may do more: a function that logs is called once.
    """
    if not isinstance(effect, Perform) or not isinstance(effect.callee, FromSource):
        return False
    cached = read_source(effect.callee.source, snapshot)
    if type(cached) is not LRU_CACHE or own.has(effect.callee.source):
        return False
    try:
        args = [_key_part(one, own, snapshot) for one in effect.args]
        kwargs = {name: _key_part(one, own, snapshot) for name, one in effect.kwargs}
        cached_result(cached, cache_key(cached, args, kwargs))
    except LookupError:
        return False
    return True


def _key_part(recipe: Recipe, own: _Own, snapshot: FrameSnapshot) -> object:
    """Return an argument that is the same in each call; raises LookupError for another one."""
    match recipe:
        case Constant(value):
            return value
        case FromSource(source):
            value = read_source(source, snapshot)
            kind: Any = type(value)
            has_identity_hash = kind.__hash__ is object.__hash__
            if is_constant(value) or (has_identity_hash and not own.has(source)):
                return value
    raise LookupError(recipe)


def written_and_read(calls: Sequence[Lifted]) -> Iterator[Write]:
    """Yield the writes of calls of a file to what one of them reads, besides state."""
    for write in (write for call in calls for write in call.writes):
        if any(call.reads.depend_on(write.target, write.key) for call in calls):
            yield write


def check_writes(calls: Sequence[Lifted]) -> None:
    """Raise CannotKeep if a call of a file reads what one of them writes to a stand-in."""
    for write in written_and_read(calls):
        raise refusal(write)


def _target(effect: Effect) -> Recipe:
    """Return the object that an assignment or a deletion changes."""
    made: Recipe = getattr(effect, effect.__match_args__[0])  # type: ignore[attr-defined]
    return made


def _restores(effect: Effect, target: object, read: Mapping[Source, Any]) -> bool:
    """Return whether an effect writes what the object had at the beginning of the call."""
    if not isinstance(effect, SetAttr):
        return False
    match effect.value:
        case Constant(value):
            written = value
        case FromSource(source):
            written = read.get(source, target)
        case _:
            return False
    try:
        had = instance_dict(target).get(effect.name, effect)
    except AttributeError:  # a class with slots
        return False
    return had is written or (is_constant(written) and same_constant(written, had))


def _places_written(effect: Effect) -> Iterator[tuple[Source, object]]:
    """Yield the objects that an effect may change, with the attribute or the key of a dict if that
    is all it changes.
    """
    match effect:
        case SetAttr(FromSource(source), name, _):
            yield source, name
        case SetItem(FromSource(source), Constant(str() | int() as key), _):
            yield source, key
        case DelItem(FromSource(source), Constant(str() | int() as key)):
            yield source, key
        case SetCell(FromSource(source), _):
            yield source, CELL
        case Perform(Constant(setter), (FromSource(source), Constant(str(name)), _)) if (
            setter is object.__setattr__
        ):
            yield source, name
        case _:
            yield from ((source, None) for source in sources_read(effect))
