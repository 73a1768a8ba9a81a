"""Ledger: what is known of the variants of one frame, and when there are enough of them.

Comes in: the entries of a dispatcher, each with a Variant in its notes, and the values of a call
that fits none. Goes out: which numbers vary, what kept each entry from fitting, and whether another
variant may be compiled. Invariant: everything here is read out of the entries that are in use; the
journal is not asked.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Protocol

import torch

from ..bytecode import FrameSnapshot
from ..errors import ASSERTION, UserLine
from ..guards.check import advice, check, holds, is_other_number, why
from ..guards.guard import (
    Guard,
    IdentityIs,
    InRange,
    NumbersRelate,
    SizesRelate,
    TensorMatch,
    TypeIs,
    ValueEquals,
)
from ..guards.read import UNREADABLE, read_source
from ..guards.source import Argument, Source, describe
from ..guards.words import one_value
from ..records import COMPILED, Compiled, Difference, Eager, Failed, Missed, Occasion, Outcome
from ..spec import TensorSpec
from ..symbols.size import SizeOf, origin_at, stride_place
from .growth import Guards, counted, differing_loops, grown_int, grown_size
from .library import LibraryFunction
from .native import Dispatcher, Entry, ModuleCall
from .skip import users_line

__all__ = ["Comparable", "Growing", "Later", "Ledger", "Variant", "why_not"]

_WASTED_LIMIT = 4  # times recompile_limit: entries that died before they were of use
_LONGEST_LOOP = 32  # values of an int, one after the other, that may be those of a loop's index
_MOST_LAYERS = 64  # that share one variant in each call of the model
_SURPRISES = 4  # that any variant may have; more of them only if they stay a small part
_TOTAL_LIMIT = 64  # times recompile_limit: entries of one code over all module instances


class Later(Protocol):
    """Something that is compiled when it is first called for."""

    @property
    def is_made(self) -> bool:
        """Whether it has been compiled."""
        ...

    def __call__(self) -> object:
        """Compile it now, unless that has been done."""
        ...


@dataclass(frozen=True, slots=True)
class Growing:
    """Of whom growth is asked: the tagged function itself or a part of it (`is_root`), where sizes
    that grow have been `noticed` before, so that one variant tells.
    """

    is_root: bool
    noticed: bool
    may_be_symbols: bool = False  # sizes that vary, at the next variant


@dataclass(frozen=True, slots=True)
class Growth:
    """In words what grows with every call; `may_end`: it may be an index that comes again."""

    why: str
    may_end: bool = False


@dataclass(frozen=True, slots=True)
class Comparable:
    """That calls of a variant can be timed beside eager's: those of a GPU on `device` too, where
    there are `nbytes` free, so that a turn of eager does not end for want of memory.
    """

    device: torch.device | None = None
    nbytes: int = 0


@dataclass(eq=False, slots=True)
class Variant:
    """What an entry remembers: the guards it was compiled for, and whose variant it counts as.

    `later`: what is compiled when it is first needed (the backward); the entry's graph holds it.
    """

    guards: tuple[Guard, ...] = ()
    outcome: Outcome = COMPILED
    later: tuple[weakref.ref[Later], ...] = ()
    ends: Eager | None = None  # at a graph break: why, and on which line of the user's
    comparable: Comparable | None = None  # with eager, on its first calls
    symbols: frozenset[Source] = frozenset()  # numbers that are data of its graph
    # Origins of sizes and numbers that were tried as symbols, and the line that needs a constant.
    constants: Mapping[Hashable, UserLine | None] = field(default_factory=dict)
    instance: int | None = None  # id of what has a budget of its own, see Ledger.instance_of
    number: int = 0  # in the order of compiling, from 1 on
    used: int = 0  # calls until the frame's limit was reached, or its last retry
    foresees: bool = False  # whether it has branches that go as they did when it was compiled
    surprises: int = 0  # calls in which a branch went another way than its graph goes
    inlined: tuple[str, ...] = ()  # tagged functions and modules that are part of it
    loops: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)  # Trace.idle_loops

    def waiting(self) -> list[Later]:
        """What has not been compiled yet and can still be needed."""
        alive = [later for ref in self.later if (later := ref()) is not None]
        return [later for later in alive if not later.is_made]


def _inlined(guards: Guards, snapshot: FrameSnapshot) -> list[Any]:
    """The handles of tagged functions and modules that are part of what these guards are for."""
    found = []
    for guard in guards:
        if isinstance(guard, IdentityIs) and isinstance(guard.value, FunctionType):
            constants = guard.value.__code__.co_consts
            found += [each.owner for each in constants if type(each) is Dispatcher]
        elif isinstance(guard, TypeIs) and guard.value is ModuleCall:
            found.append(read_source(guard.source, snapshot).owner)
    return found


class Ledger:
    """The variants of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher, library: LibraryFunction | None) -> None:
        self._dispatcher, self._library = dispatcher, library
        self.wasted = 0
        self.foresees = True  # whether branches on data of further variants are foreseen
        self.begun = 0  # compiles since the last reset
        self.added = 0  # entries that they made, since it was tagged
        self.part_of: dict[str, None] = {}  # functions whose compiled code has it inlined
        self._counted = 0  # calls in a row that were not compiled, as an int grows

    @property
    def count(self) -> int:
        """Variants compiled so far that count."""
        return len(self._dispatcher.entries) + self.wasted

    @property
    def calls(self) -> int:
        """Calls since it was tagged; the one that an entry is made for goes around once more."""
        return self._dispatcher.calls - self.added

    @property
    def is_compiled(self) -> bool:
        """Whether any variant in use runs compiled code."""
        return any(isinstance(e.notes.outcome, Compiled) for e in self._dispatcher.entries)

    @property
    def failures(self) -> int:
        """Variants in use whose compile failed."""
        return sum(isinstance(e.notes.outcome, Failed) for e in self._dispatcher.entries)

    @property
    def last_failure(self) -> Failed:
        """The outcome of the newest of them."""
        outcomes = (entry.notes.outcome for entry in self._dispatcher.entries)
        return next(outcome for outcome in outcomes if isinstance(outcome, Failed))

    def add(self, entry: Entry, values: tuple[Any, ...], snapshot: FrameSnapshot) -> None:
        """Use an entry from now on; it was made for a call with these values."""
        entry.notes.instance = self.instance_of(values)
        entry.notes.number = self.begun
        self.added += 1
        self._dispatcher.add(entry)
        callees = _inlined(entry.notes.guards, snapshot)
        entry.notes.inlined = tuple(dict.fromkeys(callee.label for callee in callees))
        for callee in callees:
            callee.ledger.part_of[self._dispatcher.owner.label] = None

    def forget(self) -> None:
        """As if nothing had been compiled; entries are the dispatcher's."""
        self.wasted = self.begun = 0
        self.foresees = True
        self.part_of.clear()

    def replace(self, entry: Entry, other: Entry) -> bool:
        """Use `other` for the same calls; False: the entry is not in use any more."""
        if entry not in self._dispatcher.entries:
            return False
        other.notes.instance = entry.notes.instance
        other.notes.number = entry.notes.number
        self._dispatcher.remove(entry)
        self._dispatcher.add(other)
        return True

    def why_given_up(self, entry: Entry, error: Exception) -> str | None:
        """Why no more calls are tried with an entry whose graph raised where eager did not; None:
        data went the way that it hardly ever goes."""
        if ASSERTION not in str(error):
            return f"its compiled graph raised {type(error).__name__}: {error}"
        if self.foresees_less(entry):
            return None
        return "a branch on data goes the way that was taken to be rare, again and again"

    def foresees_less(self, entry: Entry) -> bool:
        """One more call went another way than a variant's graph: whether that is put up with. A
        variant whose branches were foreseen too often makes room for one that breaks at them.
        """
        notes: Variant = entry.notes
        notes.surprises += 1
        if notes.surprises <= _SURPRISES or _SURPRISES * notes.surprises < entry.hits:
            return True
        if not notes.foresees or self._dispatcher.owner.options.fullgraph:
            return False
        self.foresees = False
        if entry in self._dispatcher.entries:
            self._dispatcher.remove(entry)
        return True

    def sweep(self) -> None:
        """Take out entries whose guarded objects died; they do not count as variants."""
        for entry in self._dispatcher.entries:
            if not entry.alive:
                self.wasted += entry.hits <= 1
                self._dispatcher.remove(entry)

    def is_full(self, values: tuple[Any, ...], limit: int) -> bool:
        """Whether there are `limit` variants for calls like this one, or absurdly many in all. Not
        counted are those for helpers that were defined anew: what traced them is in cycles, which
        keep them until the collector comes.
        """
        if not self._seems_full(values, limit):
            return False
        gc.collect()
        self.sweep()
        return self._seems_full(values, limit)

    def _seems_full(self, values: tuple[Any, ...], limit: int) -> bool:
        entries = self._dispatcher.entries
        wasted = self.wasted >= _WASTED_LIMIT * limit
        return len(self._alike(values)) >= limit or wasted or len(entries) >= _TOTAL_LIMIT * limit

    def count_uses(self) -> None:
        """From now on it is counted anew how much each variant is used."""
        for entry in self._dispatcher.entries:
            entry.notes.used = entry.hits

    def make_room(self, values: tuple[Any, ...], limit: int) -> None:
        """Take out what was used least since the uses were counted, but for the newest, where there
        are more than `limit` variants for calls like this one. The one used last is the last to go.
        """
        alike = self._alike(values)
        for entry in sorted(reversed(alike[1:]), key=lambda e: e.hits - e.notes.used):
            if len(alike) > limit:
                alike.remove(entry)
                self._dispatcher.remove(entry)
        self.count_uses()

    def instance_of(self, values: tuple[Any, ...]) -> int | None:
        """Each module instance has its own budget of variants: layers share their class's code.
        So has each group of parameters of an optimizer, known by its first tensor.
        """
        first = values[0] if values else None
        if self._library is not None and type(first) is list and first:
            return id(first[0])
        return id(first) if isinstance(first, torch.nn.Module) else None

    def growth(
        self, snapshot: FrameSnapshot, values: tuple[Any, ...], family: Growing
    ) -> Growth | None:
        """What grows by one from the last variant but one to the last and on to this call, where
        neither was of use again.
        """
        alike = self._alike(values)
        newest = _brief(alike, family)
        needed = 1 if family.noticed and not family.may_be_symbols else 2
        variants = [entry.notes.guards for entry in newest[:needed]]
        if len(variants) < needed:
            return None
        guard = grown_size(variants, snapshot)
        if guard is not None and not (family.may_be_symbols and _may_be_symbol(guard, newest[0])):
            return Growth(why(guard, snapshot))
        used_once = all(entry.hits <= 1 for entry in alike)  # else the index has come again
        return self._counting(variants, snapshot) if used_once and len(variants) > 1 else None

    def _alike(self, values: tuple[Any, ...]) -> list[Entry]:
        instance = self.instance_of(values)
        return [e for e in self._dispatcher.entries if e.notes.instance == instance]

    def _counting(self, variants: Sequence[Guards], snapshot: FrameSnapshot) -> Growth | None:
        """An int that goes on from the call before. It is not compiled for, but may be again: an
        index of a loop is back at its first variant in the next round.
        """
        guard = grown_int(variants, snapshot)
        steps = None if guard is None else counted(guard, snapshot)
        before, self._counted = self._counted, 0
        if guard is None or steps is None or steps != before + 1:
            return None
        self._counted = steps
        return Growth(why(guard, snapshot), may_end=steps <= _LONGEST_LOOP)

    def varying(self, snapshot: FrameSnapshot) -> frozenset[Source] | None:
        """Floats and ints that are data: those that differ from what an entry was compiled for, and
        of a library function the arguments that are declared to change. None where there are none.
        """
        changed = frozenset(
            guard.source
            for entry in self._dispatcher.entries
            for guard in entry.notes.guards
            if isinstance(guard, ValueEquals | InRange)
            and self._may_vary(guard.source, entry, snapshot)
            and is_other_number(guard, snapshot)
        )
        changed |= self._symbols(snapshot)
        if self._library is None:
            return changed or None
        names = snapshot.code.co_varnames[: len(snapshot.args)]
        declared = (Argument(i, name) for i, name in enumerate(names))
        return changed | {source for source in declared if source.name in self._library.varying}

    def differing_sizes(self, snapshot: FrameSnapshot) -> dict[Source, set[int]]:
        """Sizes and strides of tensors, by place, in which the frame differs from an entry that is
        like it in all but those and numbers, or that were symbols of one. Other instances of a
        module have tensors of other sizes, which do not vary.
        """
        found: dict[Source, set[int]] = {}
        for entry in self._alike((*snapshot.args, *snapshot.cells)):
            only_sizes = _differs_in_sizes(entry.notes.guards, snapshot)
            for guard in entry.notes.guards:
                if isinstance(guard, TensorMatch) and _same_rank(guard, snapshot):
                    places = _differing(guard, snapshot) if only_sizes else set()
                    found.setdefault(guard.source, set()).update(places, guard.free_places)
        return {source: places for source, places in found.items() if places}

    def differing_loops(self, snapshot: FrameSnapshot) -> frozenset[int]:
        """The heads of loops without tensor work which rely on what differs from call to call."""
        alike = self._alike((*snapshot.args, *snapshot.cells))
        return differing_loops([entry.notes.loops for entry in alike], snapshot)

    def earlier_sizes(
        self, snapshot: FrameSnapshot
    ) -> Callable[[Source, int], tuple[int | None, ...]]:
        """What tells the size or stride at a place of a tensor in each variant that there is."""
        entries = self._alike((*snapshot.args, *snapshot.cells))
        specs = [
            {guard.source: guard.spec for guard in e.notes.guards if isinstance(guard, TensorMatch)}
            for e in entries
        ]

        def earlier(source: Source, place: int) -> tuple[int | None, ...]:
            return tuple(_number_at(spec.get(source), place) for spec in specs)

        return earlier

    def static_shapes(self, snapshot: FrameSnapshot) -> list[dict[Source, tuple[int, ...]]]:
        """The shapes of compiled entries that differ from the frame in sizes alone, and have no
        symbols.
        """
        found = []
        for entry in self._alike((*snapshot.args, *snapshot.cells)):
            notes = entry.notes
            if isinstance(notes.outcome, Compiled) and _differs_in_sizes(notes.guards, snapshot):
                matches = [guard for guard in notes.guards if isinstance(guard, TensorMatch)]
                if not any(guard.free_places for guard in matches):
                    found.append({guard.source: guard.spec.shape for guard in matches})
        return found

    def _symbols(self, snapshot: FrameSnapshot) -> frozenset[Source]:
        """A number that was data of a variant varies, though it may be back where it was."""
        return frozenset(
            source
            for entry in self._dispatcher.entries
            for source in entry.notes.symbols
            if self._may_vary(source, entry, snapshot)
        )

    def _may_vary(self, source: Source, entry: Entry, snapshot: FrameSnapshot) -> bool:
        """Of library code only float arguments. What is no argument may be an instance's setting,
        which differs from that of another instance and never changes.
        """
        if self._library is not None:
            return isinstance(source, Argument) and type(read_source(source, snapshot)) is float
        instance = self.instance_of((*snapshot.args, *snapshot.cells))
        return isinstance(source, Argument) or bool(entry.notes.instance == instance)

    def begin(self, snapshot: FrameSnapshot) -> tuple[int, Occasion]:
        """A compile begins: the number of the variant, and the call that it is for."""
        self.begun += 1
        return self.begun, Occasion(users_line(), self.why_missed(snapshot), time.time())

    def why_missed(self, snapshot: FrameSnapshot) -> Missed:
        """For each entry, most recently used first, its number and what keeps it from fitting."""
        entries = self._dispatcher.entries
        constants = {origin for entry in entries for origin in entry.notes.constants}
        found = ((entry.notes.number, why_not(entry, snapshot, constants)) for entry in entries)
        return tuple((number, why) for number, why in found if why is not None)


def _number_at(spec: TensorSpec | None, place: int) -> int | None:
    if spec is None:
        return None
    numbers, dim = (spec.shape, place) if place >= 0 else (spec.stride, stride_place(place))
    return numbers[dim] if dim < len(numbers) else None


def _may_be_symbol(guard: Guard, newest: Entry) -> bool:
    """Whether a size that grows is a tensor's, and has not been found to be a constant."""
    tried = newest.notes.constants
    return isinstance(guard, TensorMatch) and not any(
        SizeOf(guard.source, dim) in tried for dim in range(len(guard.spec.shape))
    )


def _differs_in_sizes(guards: Guards, snapshot: FrameSnapshot) -> bool:
    """Whether sizes, and numbers, are all that keeps a variant from fitting the frame."""
    for guard in guards:
        match guard:
            case SizesRelate() | NumbersRelate():
                continue
            case TensorMatch() if _differing(guard, snapshot):
                continue
            case ValueEquals() | InRange() if is_other_number(guard, snapshot):
                continue
        if not holds(guard, snapshot):
            return False
    return True


def _same_rank(guard: TensorMatch, snapshot: FrameSnapshot) -> bool:
    """Whether the guard's dimensions are the tensor's, which is of the guard's class."""
    try:
        value: Any = read_source(guard.source, snapshot)
    except UNREADABLE:
        return False
    cls: type = type(value)
    if cls is not guard.spec.cls:  # a subclass would see what is read of it
        return False
    is_strided = value.layout is torch.strided and not value.is_nested
    return is_strided and value.dim() == len(guard.spec.shape)


def _differing(guard: TensorMatch, snapshot: FrameSnapshot) -> set[int]:
    """The places of other sizes and strides than the guard's, of a tensor that is like it in all
    else.
    """
    spec = guard.spec
    if not _same_rank(guard, snapshot):
        return set()
    value: torch.Tensor = read_source(guard.source, snapshot)
    found = {d for d, n in enumerate(value.shape) if n != spec.shape[d]}
    found |= {stride_place(d) for d, n in enumerate(value.stride()) if n != spec.stride[d]}
    resized = replace(spec, shape=tuple(value.shape), stride=tuple(value.stride()))
    return found if found and holds(replace(guard, spec=resized), snapshot) else set()


def _brief(alike: list[Entry], family: Growing) -> list[Entry]:
    """The newest variants, down to one that was of use again. The tagged function's serve one call
    each; code that layers share is called once by each layer, so its variants have equal hits.
    """
    often = alike[0].hits if alike else 0
    if family.is_root:
        return list(itertools.takewhile(lambda entry: entry.hits <= 1, alike))
    return list(itertools.takewhile(lambda entry: entry.hits == often <= _MOST_LAYERS, alike))


def why_not(
    entry: Entry, snapshot: FrameSnapshot, constants: Collection[Hashable] = ()
) -> Difference | None:
    """The first guard of an entry that does not hold for the frame, in words. `constants`: numbers
    known to be of no use as data.
    """
    failing = check(entry.notes.guards, snapshot)
    if failing is None:
        return None
    where = _made_constant(failing, snapshot, entry.notes.constants) or failing.where
    source: Source | None = getattr(failing, "source", None)
    if source is not None and source in constants:
        edit = one_value(describe(source))
    else:
        edit = advice(failing, snapshot)
    return Difference(why(failing, snapshot), where, edit, source)


def _made_constant(
    guard: Guard, snapshot: FrameSnapshot, constants: Mapping[Hashable, UserLine | None]
) -> UserLine | None:
    """The line for which a size that differs could be no symbol."""
    if not isinstance(guard, TensorMatch) or not constants:
        return None
    places = sorted(_differing(guard, snapshot), reverse=True)
    lines = (constants.get(origin_at(guard.source, place)) for place in places)
    return next(filter(None, lines), None)
